"""Names made from content: what changes a key, and what must not."""

import hashlib
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.allocate.stage import AllocateConfig
from stages.allocate.stage import identity as allocate_identity
from stages.cluster.stage import ClusterConfig
from stages.cluster.stage import identity as cluster_identity
from stages.contract import fingerprint
from stages.contract.fingerprint import (
    artifact_key,
    cached_sha256,
    canonical_json,
    file_sha256,
    section_params,
)
from tests.artifacts import SEEDED

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=8,
)


@dataclass
class Choice:
    power: int = 2


@dataclass
class OtherChoice:
    power: int = 2


@dataclass
class Section:
    rate: float = 0.5
    words: tuple[str, ...] = ("a", "b")
    choice: Any = field(default_factory=Choice)
    path: str = "here"


def test_a_key_is_the_hash_of_canonical_json_written_out_by_hand() -> None:
    text = '{"inputs":{"rows":"00ff"},"params":{"ä":1},"stage":"tokens","version":3}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert artifact_key("tokens", 3, {"ä": 1}, {"rows": "00ff"}) == expected


def test_each_part_of_the_identity_changes_the_key() -> None:
    keys = [
        artifact_key("tokens", 1, {"a": 1}, {"rows": "k"}),
        artifact_key("embed", 1, {"a": 1}, {"rows": "k"}),
        artifact_key("tokens", 2, {"a": 1}, {"rows": "k"}),
        artifact_key("tokens", 1, {"a": 2}, {"rows": "k"}),
        artifact_key("tokens", 1, {"a": 1.0}, {"rows": "k"}),
        artifact_key("tokens", 1, {"a": 1, "b": None}, {"rows": "k"}),
        artifact_key("tokens", 1, {"a": 1}, {"rows": "l"}),
        artifact_key("tokens", 1, {"a": 1}, {"tokens": "k"}),
        artifact_key("tokens", 1, {"a": 1}, {}),
    ]
    assert len(set(keys)) == len(keys)


def test_canonical_json_by_hand() -> None:
    value = {"b": [1, 2.5, None, True], "a": "é\n"}
    assert canonical_json(value) == '{"a":"é\\n","b":[1,2.5,null,true]}'


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_canonical_json_refuses_what_json_has_not(bad: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"a": bad})


@SEEDED
@given(st.dictionaries(st.text("abcdef"), PLAIN, max_size=6), st.randoms())
def test_canonical_json_does_not_depend_on_the_order_of_keys(
    value: dict[str, Any], random: Any
) -> None:
    names = list(value)
    random.shuffle(names)
    assert canonical_json({name: value[name] for name in names}) == canonical_json(value)


def test_section_params_by_hand() -> None:
    assert section_params(Section(), without=("path",)) == {
        "class": "Section",
        "rate": 0.5,
        "words": ("a", "b"),
        "choice": {"class": "Choice", "power": 2},
    }


def test_the_class_of_a_choice_is_part_of_the_key_even_with_equal_fields() -> None:
    one, other = section_params(Section()), section_params(Section(choice=OtherChoice()))
    assert artifact_key("s", 1, one, {}) != artifact_key("s", 1, other, {})


CHANGED_CLUSTER = {
    "feature": "head_sketch",
    "num_clusters": 5,
    "normalize": False,
    "center": True,
    "n_init": 3,
    "fit_rows": 77,
    "slack": 0.25,
    "candidates": 8,
    "min_rows": 3,
    "restore_count": "yes",
    "seed": 1,
}
CHANGED_ALLOCATE = {
    "selector": Uniform(),
    "ratio": 0.5,
    "budget": "10rows",
    "num_workers": 2,
    "micro_batch": 2,
    "accumulation": 2,
    "order": "balanced",
    "schedule": "dealt",
    "objective": "token",
    "on_empty_quota": "error",
    "seed": 1,
}


@pytest.mark.parametrize(
    ("config", "identity", "changed"),
    [
        (ClusterConfig, cluster_identity, CHANGED_CLUSTER),
        (AllocateConfig, allocate_identity, CHANGED_ALLOCATE),
    ],
)
def test_every_field_of_a_section_changes_the_key(
    config: Any, identity: Any, changed: dict[str, Any]
) -> None:
    assert {f.name for f in fields(config)} == set(changed), "a new field needs a line above"
    keys = [artifact_key("s", 1, identity(config()), {})]
    keys += [artifact_key("s", 1, identity(config(**{n: v})), {}) for n, v in changed.items()]
    assert len(set(keys)) == len(keys)


def test_an_option_of_the_selector_changes_the_key() -> None:
    keys = {
        artifact_key("allocate", 1, allocate_identity(AllocateConfig(selector=selector)), {})
        for selector in (ClusterBalanced(), ClusterBalanced(keep="nearest"), Uniform())
    }
    assert len(keys) == 3


def test_the_default_ratio_has_the_key_of_the_same_ratio_given() -> None:
    assert allocate_identity(AllocateConfig()) == allocate_identity(AllocateConfig(ratio=1.0))


def test_a_file_is_named_by_its_bytes_and_not_by_its_path(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "deep" / "two"
    two.parent.mkdir()
    for path in (one, two):
        path.write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_sha256(one) == file_sha256(two) == expected
    assert cached_sha256(one, tmp_path / "cache") == cached_sha256(two, tmp_path / "cache")


def test_a_remembered_hash_is_forgotten_when_the_file_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"abc")
    first = cached_sha256(path, cache)
    assert cached_sha256(path, cache) == first
    assert [entry.read_text() for entry in cache.iterdir()] == [first]
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert cached_sha256(path, cache) == file_sha256(path) != first


def test_a_copy_that_keeps_the_time_of_its_contents_is_hashed_anew(tmp_path: Path) -> None:
    """As `cp -p` and `rsync -a` leave it: same size, same time, other bytes."""
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"aaaa")
    os.utime(path, ns=(1, 1))
    first = cached_sha256(path, cache)
    path.write_bytes(b"bbbb")
    os.utime(path, ns=(1, 1))
    assert cached_sha256(path, cache) == file_sha256(path) != first


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"abc")

    def hash_then_grow(read: Path) -> str:
        digest = file_sha256(read)
        read.write_bytes(b"abcdef")
        return digest

    with monkeypatch.context() as patched:
        patched.setattr(fingerprint, "file_sha256", hash_then_grow)
        cached_sha256(path, cache)
    assert cached_sha256(path, cache) == file_sha256(path)


def test_a_broken_entry_of_the_cache_is_made_again(tmp_path: Path) -> None:
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"abc")
    first = cached_sha256(path, cache)
    (entry,) = cache.iterdir()
    entry.write_text(first[:10])
    assert cached_sha256(path, cache) == first
    assert entry.read_text() == first


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "none")
