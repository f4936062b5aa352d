"""One cluster of two nodes for the tests that submit and those that kill, since a start is slow."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_ray.nodes import Cluster, cluster
from tests.conftest import ROOT
from tests.pipeline.runs import Run, command, environment
from tests.tiny import tiny_model

FEWER = ("rows.limit=64",)  # eight parts of the pass


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Cluster]:
    """A head and a node of one CPU each; a test that kills one starts another in its place."""
    with cluster() as made:
        made.add("head", cpus=1)
        made.add("second", cpus=1)
        yield made


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slow enough that a kill hits the middle of the pass."""
    return tiny_model(tmp_path_factory.mktemp("slow") / "model", num_layers=8, hidden=512)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, slow_model: Path) -> Run:
    """The run that every disturbed one must equal, in one process without Ray."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = command(folder, slow_model, *FEWER, "compute=local")
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Run(0, done.stderr, done.stdout, folder / "out")
