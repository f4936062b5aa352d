"""What is sent to a cluster: code and conf, full paths, nothing else; and how a log is followed."""

import asyncio
import dataclasses
import glob
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import aiohttp
import pytest
from omegaconf import OmegaConf

from pipeline import submit
from pipeline.config import Config, compose, compose_raw
from pipeline.places import FOLDERS, INPUTS, paths_of_here
from pipeline.submit import CARRIED, MOST_BYTES, follow, pack, packages, parse
from stages.allocate.selectors import selector_classes
from stages.contract.errors import ConfigurationError
from tests.conftest import ROOT


def checkout(folder: Path) -> Path:
    for name in CARRIED:
        path = folder / name
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("[project]\n")
        else:
            path.mkdir(parents=True)
            (path / "one.py").write_text("1\n")
    (folder / "data" / "sample" / "sample.jsonl").write_text("{}\n")
    for other in (".git/config", ".venv/bin/python", "data/store/part.parquet"):
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_text("x")
    (folder / "stages" / "__pycache__").mkdir()
    (folder / "stages" / "__pycache__" / "one.pyc").write_text("x")
    return folder


def test_code_and_conf_and_the_sample_travel_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    size = pack(checkout(tmp_path / "checkout"), target)
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    code = {f"{name}/one.py" for name in CARRIED if "." not in name}
    assert files == {*code, "pyproject.toml", "data/sample/sample.jsonl"}
    assert size == sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def test_this_checkout_is_small_enough(tmp_path: Path) -> None:
    assert 500_000 < pack(ROOT, tmp_path) < MOST_BYTES / 2
    assert (tmp_path / "conf" / "config.yaml").exists()


@pytest.mark.parametrize(
    "name",
    ["stages/big.parquet", "conf/model.safetensors", "pipeline/.git/config", "stages/.venv/x.py"],
)
def test_data_and_repositories_among_the_code_are_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    root = checkout(tmp_path / "checkout")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")
    with pytest.raises(ConfigurationError, match=f"{name} does not belong"):
        pack(root, tmp_path / "packed")


def test_a_link_and_too_many_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "checkout")
    monkeypatch.setattr(submit, "MOST_BYTES", 20)
    with pytest.raises(ConfigurationError, match="must have at most 20; the largest files are"):
        pack(root, tmp_path / "packed")
    (root / "conf" / "link.yaml").symlink_to("/etc/hostname")
    with pytest.raises(ConfigurationError, match=r"conf/link\.yaml does not belong"):
        pack(root, tmp_path / "packed")


def test_the_words_of_submit_are_its_own_and_the_rest_is_the_runs() -> None:
    told = parse(['address="http://head:8265"', "seed=1", "follow=false", "id=a", "name=b"])
    assert (told.address, told.python, told.follow) == ("http://head:8265", "python", False)
    assert (told.job, told.overrides) == ("a", ("seed=1", "name=b"))
    assert parse(["address=http://127.0.0.1:1"]).python != "python"


@pytest.mark.parametrize("words", [[], ["address=head:8265"], ["address=http://h", "follow=no"]])
def test_wrong_words_name_the_key(words: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"address=|follow=no"):
        parse(words)


def test_folders_and_files_of_here_are_told_by_their_full_paths(tmp_path: Path) -> None:
    (tmp_path / "my.jsonl").write_text("{}")
    full = paths_of_here(["rows.path=my.jsonl", 'store="s3://b/s"', "out=/shared/out"], tmp_path)
    assert full == [
        f'models="{tmp_path}/data/models"',
        'out="/shared/out"',
        f'rows.path="{tmp_path}/my.jsonl"',
    ]
    assert not [word for word in paths_of_here([], ROOT) if word.startswith("rows.path")]


# Texts of the configuration that name no place.
NO_PLACES = {
    *("name", "compute.address", "tracking.tracker", "tracking.project"),
    *("rows.dialect", "targets.dialect", "screen.duplicates", "screen.near_duplicates"),
    *("screen.on_leak", "tokens.on_too_long", "tokens.on_template_error"),
    "tokens.date",
    "tokens.special_in_text",
    *("model.dtype", "model.attn_implementation", "reference.dtype"),
    *("reference.attn_implementation", "embed.feature", "embed.also", "cluster.feature"),
    *("cluster.restore_count", "allocate.budget", "allocate.order", "allocate.schedule"),
    *("allocate.objective", "allocate.on_empty_quota", "compare.budgets", "compare.methods"),
}


def texts(section: Any, prefix: str = "") -> Iterator[str]:
    """Name every key of a section whose type is a text, or a list of them."""
    hints = get_type_hints(section)
    for field in dataclasses.fields(section):
        kind, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(kind):
            yield from texts(kind, f"{key}.")
        elif str in (kind, *get_args(kind)):
            yield key


def test_every_text_of_the_configuration_is_a_place_or_is_none() -> None:
    found = set(texts(Config))
    assert found == {*FOLDERS, *INPUTS} | NO_PLACES, "a new key: put it into pipeline/places.py"
    assert not {*FOLDERS, *INPUTS} & NO_PLACES
    for selector in selector_classes().values():
        assert not [f.name for f in dataclasses.fields(selector) if "path" in f.name]


@pytest.mark.parametrize("key", [*FOLDERS, *INPUTS])
@pytest.mark.parametrize("name", ["my file, it's.jinja", 'a"b.jinja', "sub/[a].jinja"])
def test_every_place_that_is_here_is_told_by_its_full_path(
    tmp_path: Path, key: str, name: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    quoted = '"' + name.replace('"', '\\"') + '"'
    listed = key == "screen.benchmarks"
    told = [f"{key}=[{quoted}]" if listed else f"{key}={quoted}", "tracking=wandb"]
    full = [*told, *paths_of_here(told, tmp_path)]
    value = OmegaConf.select(compose_raw(full), key)
    assert (value[0] if listed else value) == str(tmp_path / name)
    assert paths_of_here(full, tmp_path) == paths_of_here(told, tmp_path)[:3] or key in FOLDERS


@pytest.mark.parametrize("key", ["rows.path", "targets.path", "screen.benchmarks"])
def test_a_glob_is_told_by_its_full_path_where_it_matches(tmp_path: Path, key: str) -> None:
    root = tmp_path / "check[out]"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "a.jsonl").write_text("{}")

    def place(pattern: str) -> list[str]:
        told = f'{key}=["{pattern}"]' if key.endswith("s") else f'{key}="{pattern}"'
        raw = compose_raw([told, *paths_of_here([told], root)])
        value = OmegaConf.select(raw, key)
        return [value] if isinstance(value, str) else list(value)

    for pattern in ("d/*/*.jsonl", "d/**/a.jsonl", "d/e/[ab].jsonl"):
        [full] = place(pattern)
        assert full.startswith("/") and full.endswith(f"/{pattern}")
        assert glob.glob(full, recursive=True) == [str(root / "d" / "e" / "a.jsonl")]
    assert place("d/*.parquet") == ["d/*.parquet"]
    assert place("org/name") == ["org/name"]


def test_words_that_are_no_files_stay_words(tmp_path: Path) -> None:
    """Also where a file of that name is here."""
    for word in ("chat", "alpaca", "smollm2", "warmup"):
        (tmp_path / word).mkdir()
    told = ["reference.path=warmup", "tokens.template=alpaca", "trajectory.steps=6"]
    keys = {word.partition("=")[0] for word in paths_of_here(told, tmp_path)}
    assert keys == {"store", "models", "out"}
    assert compose([*told, *paths_of_here(told, tmp_path)]).reference.path == "warmup"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (["tracking=tensorboard"], "{root}/data/tensorboard"),
        (["tracking=wandb", "tracking.where=w"], "{root}/w"),
        (["tracking=mlflow", "tracking.where=w"], "{root}/w"),
        (["tracking=mlflow", 'tracking.where="sqlite:///x.db"'], None),
        (["tracking=mlflow", "tracking.where=databricks"], None),
        (["tracking=mlflow"], None),
    ],
)
def test_figures_of_a_tracker_do_not_go_into_the_folder_of_the_job(
    tmp_path: Path, told: list[str], expected: str | None
) -> None:
    full = [w for w in paths_of_here(told, tmp_path) if w.startswith("tracking.where=")]
    assert full == ([f'tracking.where="{expected.format(root=tmp_path)}"'] if expected else [])


def test_packages_are_those_of_curate_without_ray() -> None:
    wanted = packages(ROOT / "pyproject.toml")
    assert any(name.startswith("torch>=") for name in wanted)
    assert any(name.startswith("jinja2>=") for name in wanted), "an extra inside an extra"
    assert not [name for name in wanted if name.startswith(("ray", "evenshard"))]


class Client:
    """A job whose log breaks off once in the middle, and starts anew from its beginning."""

    def __init__(self, status: str, code: int | None) -> None:
        self.tails = 0
        self.info = SimpleNamespace(
            status=SimpleNamespace(value=status), driver_exit_code=code, message="told"
        )

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        self.tails += 1
        yield "one\n"
        await asyncio.sleep(0)
        if self.tails == 1:
            raise RuntimeError("the connection is lost")
        yield "two\n"

    def get_job_info(self, job: str) -> SimpleNamespace:
        return self.info


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("FAILED", None, 1), ("STOPPED", -15, 130)],
)
def test_a_log_is_shown_once_and_the_status_is_that_of_the_run(
    status: str,
    code: int | None,
    expected: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submit, "SECONDS_BETWEEN_LOOKS", 0.0)
    assert follow(Client(status, code), "job") == expected
    assert capsys.readouterr().out == "one\ntwo\n"


class Gone(Client):
    """A cluster that is gone for ever after some answers: in the log, or after its end."""

    def __init__(self, error: Exception, texts: int, tail_ends: bool = False) -> None:
        super().__init__("RUNNING", None)
        self.error, self.texts, self.tail_ends, self.calls = error, texts, tail_ends, 0

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        self.calls += 1
        for line in range(min(self.calls, self.texts)):
            yield f"{line}\n"
        if not self.tail_ends:
            raise self.error

    def get_job_info(self, job: str) -> SimpleNamespace:
        self.calls += 1
        raise self.error


@pytest.mark.parametrize("tail_ends", [False, True])
@pytest.mark.parametrize(
    "error",
    [RuntimeError("status code 404"), ConnectionError("refused"), aiohttp.ClientError("closed")],
)
def test_a_cluster_that_is_gone_for_ever_is_given_up(
    error: Exception, tail_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are counted from the last new line of the log; then the job is named."""
    monkeypatch.setattr(submit, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(submit, "MOST_FAILURES", 5)
    gone = Gone(error, 1 if tail_ends else 3, tail_ends)
    with pytest.raises(ConfigurationError, match=r"out of reach .*; job raysubmit may still run"):
        follow(gone, "raysubmit")
    assert gone.calls == (1 + 5 if tail_ends else 3 + 4)
