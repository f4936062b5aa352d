"""A job that is submitted to two nodes gives the same shards as a run in this process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_ray.conftest import FEWER
from tests.cluster_ray.nodes import Cluster
from tests.conftest import ROOT
from tests.pipeline.runs import SMALL, Run

pytestmark = pytest.mark.cluster


def call(two: Cluster, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pipeline", verb, f"address={two.dashboard}", *words],
        cwd=ROOT,
        env=two.environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def words(model: Path, folder: Path) -> tuple[str, ...]:
    return (
        *(*SMALL, *FEWER, f"model.path={model}"),
        *(f"store={folder / 's'}", f"models={folder / 'm'}", f"out={folder / 'o'}"),
    )


def test_a_submitted_job_is_followed_and_gives_the_same_shards(
    two_nodes: Cluster, undisturbed: Run, slow_model: Path, tmp_path: Path
) -> None:
    told = words(slow_model, tmp_path)
    done = call(two_nodes, "submit", *told)
    assert done.returncode == 0, done.stderr + done.stdout
    assert Run(0, "", "", tmp_path / "o").shards() == undisturbed.shards()
    assert "the cluster has 2 nodes, 2 CPUs, 0 GPUs: compute=cpu compute.workers=2" in done.stderr
    assert re.search(r"working directory: \d+ bytes", done.stderr)
    assert "got       " in done.stdout, "the log was not followed"

    wrong = call(two_nodes, "submit", *told, "allocate.num_workers=65", "compute.workers=1")
    assert wrong.returncode == 2
    assert "allocate.num_workers=65" in wrong.stdout and "Traceback" not in wrong.stdout

    listed = call(two_nodes, "submit-status")
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["SUCCEEDED", "FAILED"]


def test_a_job_is_stopped_and_goes_on_when_it_is_submitted_again(
    two_nodes: Cluster, undisturbed: Run, slow_model: Path, tmp_path: Path
) -> None:
    told = words(slow_model, tmp_path)
    sent = call(two_nodes, "submit", *told, "follow=false")
    assert sent.returncode == 0, sent.stderr
    stopped = call(two_nodes, "submit-stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "STOPPED" in stopped.stderr
    assert not (tmp_path / "o").exists()
    again = call(two_nodes, "submit-stop")
    assert again.returncode == 2 and "no job runs" in again.stderr
    assert call(two_nodes, "submit", *told).returncode == 0
    assert Run(0, "", "", tmp_path / "o").shards() == undisturbed.shards()
