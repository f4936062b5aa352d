"""What is sent to a cluster: code and conf, full paths, nothing else; and how a log is followed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import submit
from pipeline.submit import CARRIED, MOST_BYTES, follow, pack, packages, parse, paths_of_here
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
