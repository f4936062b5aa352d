"""What all tests share: a tiny model, and the rule for skips in continuous integration."""

import os
from pathlib import Path

import pytest

from tests.tiny import tiny_model

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample" / "sample.jsonl"
SHARED = ROOT.parent / "shared"
LONGEST = ("pipeline", "evenshard", "faults", "benchmarks", "report")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with its tokenizer."""
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what starts processes, so that no core waits in the end for the longest file."""
    items.sort(key=lambda item: item.path.relative_to(ROOT / "tests").parts[0] not in LONGEST)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> object:
    """Under CI a skip for something that the project installs itself is a failure.

    Skips are left for what no machine can be asked to have: files beside the checkout (their
    reason says `are not here`) and a GPU (the test is marked `gpu`).
    """
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("CI") != "true" or report.outcome != "skipped":
        return
    excused = item.get_closest_marker("gpu") is not None or "here" in str(report.longrepr)
    if not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
