"""Nodes and actors that die in mid-pass, and one that comes: same bytes, nothing done twice."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster_ray.conftest import FEWER
from tests.cluster_ray.nodes import Cluster, Node, command_of, descendants
from tests.conftest import ROOT
from tests.pipeline.runs import Run, command

pytestmark = pytest.mark.cluster


@contextmanager
def driver(two: Cluster, folder: Path, model: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run with a worker on each node; what it says is in `folder`/said."""
    folder.mkdir(exist_ok=True)
    where = ("compute.workers=2", f"compute.address={two.address}")
    words = command(folder, model, *FEWER, *where)
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(
            words, cwd=ROOT, env=two.environment, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(folder: Path) -> str:
    return (folder / "said").read_text()


def finished_parts(folder: Path) -> dict[str, int]:
    """Names of the finished parts of the pass, with the inodes that tell if one is made again."""
    records = (folder / "store" / "embed").glob("*/part-*.parquet.json")
    return {record.name: record.with_suffix("").stat().st_ino for record in records}


def wait_until(holds: Callable[[], object], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 900
    while not holds():
        assert process.poll() is None, f"the run ended before it was disturbed: {said(folder)}"
        assert time.monotonic() < deadline, said(folder)
        time.sleep(0.05)


def ended(process: subprocess.Popen[bytes], folder: Path) -> Run:
    assert process.wait(timeout=1800) == 0, said(folder)
    return Run(0, said(folder), "", folder / "out")


def workers_of(node: Node) -> list[int]:
    return [pid for pid in descendants(node.process.pid) if "_Actor" in command_of(pid)]


def test_an_actor_and_then_its_node_are_killed_in_mid_pass_and_another_node_comes(
    two_nodes: Cluster, undisturbed: Run, slow_model: Path, tmp_path: Path
) -> None:
    [second] = [node for node in two_nodes.nodes if node.name == "second"]
    with driver(two_nodes, tmp_path, slow_model) as process:
        wait_until(lambda: finished_parts(tmp_path) and workers_of(second), process, tmp_path)
        os.kill(workers_of(second)[0], signal.SIGKILL)
        # It may still have been loading the model.
        wait_until(lambda: re.search(r"worker.* died", said(tmp_path)), process, tmp_path)
        second.kill()
        kept = finished_parts(tmp_path)
        assert 0 < len(kept) < 8, "the kill did not hit the middle of the pass"
        two_nodes.nodes.remove(second)
        two_nodes.add("third", cpus=1)
        done = ended(process, tmp_path)
    assert done.shards() == undisturbed.shards()
    [embed] = (tmp_path / "store" / "embed").iterdir()
    for name, inode in kept.items():
        assert (embed / name).with_suffix("").stat().st_ino == inode, f"{name} was made again"


def test_a_driver_killed_in_mid_pass_goes_on_where_it_was(
    two_nodes: Cluster, undisturbed: Run, slow_model: Path, tmp_path: Path
) -> None:
    with driver(two_nodes, tmp_path, slow_model) as process:
        wait_until(lambda: len(finished_parts(tmp_path)) >= 2, process, tmp_path)
    kept = finished_parts(tmp_path)
    assert len(kept) < 8, "the kill did not hit the middle of the pass"
    with driver(two_nodes, tmp_path, slow_model) as process:
        done = ended(process, tmp_path)
    assert done.shards() == undisturbed.shards()
    assert int(done.log.split("resumed: ")[1].split(" of ")[0]) >= len(kept)
