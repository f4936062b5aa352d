"""What every selector promises, whichever files there are; and that a new file is enough."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stages
from stages.allocate.candidates import Budget, Candidates
from stages.allocate.choose import Selection, checked
from stages.allocate.keep import RULES
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import ConfigurationError, DataError
from tests.allocate.samples import candidates, permuted
from tests.artifacts import FEW

every_selector = pytest.mark.parametrize("name", sorted(selector_classes()))
# Options beside the defaults; every selector is tried with its defaults as well.
OPTIONS: list[tuple[str, dict[str, object]]] = [
    *[("cluster_balanced", {"keep": rule}) for rule in RULES],
    ("stratified", {"quota": "neyman"}),
    ("learnable", {"inner": "uniform", "share": 0.3}),
    ("stratified", {"quota": "neyman", "spread": "loss"}),
    ("kcenter", {"within": "all", "outliers": 0.2}),
    ("importance", {"uniform_share": 0.5}),
    ("el2n", {"within": "clusters", "drop_hardest": 0.3}),
    ("head_grand", {"by": "sketch"}),
    ("loss_rank", {"weights": "inverse"}),
    ("uncertainty", {"signal": "least_confidence", "keep": "smallest", "within": "clusters"}),
    ("svp", {"measure": "least_confidence"}),
    ("badge", {"within": "all"}),
    ("density", {"weights": "inverse", "reference_rows": 5}),
    ("facility_location", {"within": "all"}),
    ("gradmatch", {"within": "clusters", "tolerance": 0.3}),
    ("gradmatch", {"within": "all", "ridge": 1e-3}),
    ("tagcos", {"tolerance": 0.3}),
    ("semdedup", {"order": "random"}),
    ("semdedup", {"order": "easy"}),
    ("deita_repr", {"signal": "random"}),
    ("ifd", {"ratio": "ppl"}),
    ("s2l", {"sources": "proportional", "num_trajectories": 3}),
    ("less_lite", {"over": "mean"}),
    ("less", {"over": "mean"}),
]
every_variant = pytest.mark.parametrize(
    ("name", "options"),
    [*[(name, {}) for name in sorted(selector_classes())], *OPTIONS],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any)


def choose_from(
    name: str,
    rows: Candidates,
    budget: int,
    seed: int,
    options: Mapping[str, object] = MappingProxyType({}),
) -> Selection:
    selector = selector_classes()[name](**options)
    return Selection(*selector.select(rows, Budget(budget), np.random.default_rng(seed)))


def select(name: str, budget: int, seed: int, *, constant: bool = False) -> Selection:
    rows = candidates([17, 5, 30, 11], seed=seed, constant=constant)
    return choose_from(name, rows, budget, seed)


def by_row_id(rows: Candidates, selection: Selection) -> tuple[list[int], list[float]]:
    ids = rows.row_ids[selection.rows]
    order = np.argsort(ids)
    return ids[order].tolist(), selection.weights[order].tolist()


@every_variant
@FEW
@given(SIZES, st.floats(0, 1), st.integers(0, 1000), st.booleans())
def test_a_selector_keeps_its_promises_whatever_the_order_of_the_rows(
    name: str,
    options: dict[str, object],
    sizes: list[int],
    share: float,
    seed: int,
    constant: bool,
) -> None:
    rows = candidates(sizes, seed=seed, constant=constant)
    budget = 1 + int(share * (rows.num_rows - 1))
    first, second = (choose_from(name, rows, budget, seed, options) for _ in range(2))
    checked(first, budget)
    assert first.rows[0] >= 0
    assert first.rows[-1] < rows.num_rows
    assert np.array_equal(first.rows, second.rows)
    assert np.array_equal(first.weights, second.weights)
    other = permuted(rows, np.random.default_rng(seed + 1).permutation(rows.num_rows))
    moved = checked(choose_from(name, other, budget, seed, options), budget)
    ids, weights = by_row_id(rows, first)
    moved_ids, moved_weights = by_row_id(other, moved)
    assert moved_ids == ids
    assert np.allclose(moved_weights, weights)


@every_selector
@pytest.mark.parametrize("budget", [1, 3, 4, 40, 62, 63])
def test_a_selector_works_where_all_features_are_the_same(name: str, budget: int) -> None:
    checked(select(name, budget, 0, constant=True), budget)


@every_selector
def test_a_selector_counts_a_row_of_many_duplicates_as_many(name: str) -> None:
    rows = candidates([17, 5, 30, 11], duplicates=False)
    many = rows.multiplicity.copy()
    plain = choose_from(name, rows, 63, 0)
    many[plain.rows[7]] = 50
    heavy = choose_from(name, replace(rows, multiplicity=many), 63, 0)
    others = np.arange(63) != 7
    assert heavy.weights[7] > 1.5 * plain.weights[7]
    assert heavy.weights[7] > np.median(heavy.weights[others])


@pytest.mark.parametrize("name", ["stratified", "kcenter", "facility_location", "semdedup"])
def test_a_cluster_without_a_row_is_an_error_where_that_is_asked(name: str) -> None:
    rows = candidates([17, 5, 30, 11])
    budget = Budget(3, on_empty_quota="error")
    with pytest.raises(DataError, match="would keep no row"):
        selector_classes()[name]().select(rows, budget, np.random.default_rng(0))


@every_selector
def test_a_selector_says_what_its_ratio_is_a_share_of(name: str) -> None:
    assert selector_classes()[name]().ratio_of in ("candidates", "smallest_cluster")


@every_selector
def test_a_selector_can_keep_every_row(name: str) -> None:
    selection = select(name, 63, 0)
    assert np.array_equal(selection.rows, np.arange(63))


def test_the_selectors_of_the_base_are_found_by_file_name() -> None:
    found = selector_classes()
    assert found["cluster_balanced"] is ClusterBalanced
    assert found["uniform"] is Uniform


@pytest.mark.parametrize("keep", ["farthest", "nearest", "mixed", "random", "kcenter"])
def test_a_balanced_selection_keeps_every_clusters_share(keep: str) -> None:
    rows = candidates([17, 5, 30, 11])
    kept, weights = ClusterBalanced(keep=keep).select(rows, Budget(20), np.random.default_rng(0))
    assert np.bincount(rows.cluster[kept]).tolist() == [5, 5, 5, 5]
    shares = np.bincount(rows.cluster[kept], weights=weights) / 20
    assert np.allclose(shares, rows.mass() / rows.mass().sum(), atol=1e-12)


def test_uniform_keeps_every_row_as_often_and_weighs_it_as_its_duplicates() -> None:
    rows = candidates([17, 5, 30, 11])
    hits = np.zeros(63)
    for seed in range(300):
        kept, weights = Uniform().select(rows, Budget(21), np.random.default_rng(seed))
        hits[kept] += 1
        per_copy = weights / rows.multiplicity[kept]
        assert np.allclose(per_copy, per_copy[0])
    assert 60 < hits.min() <= hits.max() < 140  # 100 expected, standard deviation 8.2


def test_a_wrong_keep_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ClusterBalanced(keep="farthst")
    assert "Did you mean allocate.selector.keep=farthest?" in str(caught.value)


NEW = '''"""Keep the first rows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(kw_only=True)
class First:
    ratio_of: ClassVar[str] = "candidates"

    def select(self, candidates, budget, rng):
        return np.arange(budget.num_rows), np.ones(budget.num_rows)
'''
PRINT = "from stages.allocate.selectors import selector_classes as s; print(sorted(s()))"


def run_with(folder: Path, files: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """List the selectors of a copy of the package to which files were added."""
    ignore = shutil.ignore_patterns("__pycache__")
    copy = folder / "stages"
    shutil.copytree(Path(stages.__file__).parent, copy, ignore=ignore)
    for name, text in files.items():
        (copy / "allocate" / "selectors" / name).write_text(text)
    environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", PRINT],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_new_file_is_a_new_selector(tmp_path: Path) -> None:
    found = run_with(tmp_path, {"first.py": NEW})
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == str(sorted([*selector_classes(), "first"]))


@pytest.mark.parametrize(
    ("text", "number"), [("X = 1\n", 0), (NEW + NEW.replace("class First", "class Second"), 2)]
)
def test_a_file_without_exactly_one_selector_is_named(
    tmp_path: Path, text: str, number: int
) -> None:
    found = run_with(tmp_path, {"first.py": text})
    assert found.returncode != 0
    assert "stages.allocate.selectors.first must define one class" in found.stderr
    assert f"it defines {number}" in found.stderr
