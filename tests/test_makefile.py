"""The make targets: each variable sets one key, and what is not given sets nothing."""

import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

CURATE = "-m pipeline curate"


def dry(*words: str, environment: dict[str, str] | None = None) -> str:
    """Say what make would run, without running it."""
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, "--no-print-directory", "-n", *words],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def overrides(output: str, verb: str) -> str:
    [line] = [line for line in output.splitlines() if f"-m pipeline {verb}" in line]
    return " ".join(line.split(f"-m pipeline {verb}")[1].split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ""),
        (["DATASET=a b/*.jsonl"], "'rows.path=\"a b/*.jsonl\"'"),
        (["NAME=mine"], "'name=\"mine\"'"),
        (['DATASET=it\'s "a".jsonl'], "'rows.path=\"it'\\''s \\\"a\\\".jsonl\"'"),
        (["MODEL=org/name"], "'model.path=\"org/name\"'"),
        (["WORLD_SIZE=8"], "'allocate.num_workers=8'"),
        (["RATIO=0.5"], "'allocate.ratio=0.5'"),
        (["BUDGET=50%"], "'allocate.budget=\"50%\"'"),
        (["ARGS=rows.limit=3 experiment=paper"], "rows.limit=3 experiment=paper"),
    ],
)
def test_a_variable_sets_one_key(words: list[str], expected: str) -> None:
    assert overrides(dry("curate", *words), "curate") == expected


def test_the_environment_sets_nothing() -> None:
    """NAME and MODEL are common names; a shell that exports them must not move a run."""
    output = dry("curate", environment={"NAME": "host", "MODEL": "other", "RATIO": "0.1"})
    assert overrides(output, "curate") == ""


def test_reshard_and_verify_mean_the_sample_unless_a_run_is_meant() -> None:
    sample = "name=sample 'allocate.num_workers=8'"
    assert overrides(dry("reshard", "WORLD_SIZE=8"), "reshard") == sample
    assert overrides(dry("reshard", "NAME=x"), "reshard") == "'name=\"x\"'"
    assert overrides(dry("reshard", "DATASET=x.jsonl"), "reshard") == "'rows.path=\"x.jsonl\"'"
    assert overrides(dry("reshard", "ARGS=out=/x"), "reshard") == "out=/x"
    assert overrides(dry("verify"), "verify") == ""
    assert overrides(dry("verify", "NAME=x"), "verify") == "'name=\"x\"'"


def test_help_lists_every_target_and_variable() -> None:
    text = (ROOT / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    printed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for word in [*phony.split(), "DATASET", "NAME", "MODEL", "WORLD_SIZE", "RATIO", "BUDGET"]:
        assert re.search(rf"^ *{word}\b", printed, re.MULTILINE), word


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()
