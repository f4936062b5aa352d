"""A store on an S3 server: the same shards as from a disk, and a killed run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from stages.contract.folder import RemotePath
from tests.cluster_ray.nodes import free_port
from tests.conftest import ROOT
from tests.pipeline.runs import Run, command, environment
from tests.tiny import tiny_model

pytestmark = pytest.mark.cluster

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket on moto's server, on loopback; the URL of a store in it."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                request = Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
                with closing(urlopen(request, timeout=10)):
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.5)
        where = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        yield f"s3://bucket/NAME?{where}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("slow") / "model", num_layers=6, hidden=192)


def started(folder: Path, model: Path, *overrides: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    words = command(folder, model, "rows.limit=64", "compute=local", *overrides)
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**environment(), **KEYS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], folder: Path) -> Run:
    told = process.communicate(timeout=1800)[1]
    assert process.returncode == 0, told
    return Run(0, told, "", folder / "out")


def test_a_store_on_s3_gives_the_same_shards_and_a_killed_run_goes_on(
    bucket: str, slow_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    local = ended(started(tmp_path / "local", slow_model), tmp_path / "local")

    url = bucket.replace("NAME", "store")
    told = (f'store="{url}"', f"models={tmp_path / 'models'}")
    process = started(tmp_path / "far", slow_model, *told)
    embed = RemotePath(url) / "embed"
    deadline = time.monotonic() + 900
    while True:
        parts = [p.name for key in embed.iterdir() for p in key.iterdir()]
        kept = [name for name in parts if name.endswith(".parquet.json")]
        if len(kept) >= 2:
            break
        assert process.poll() is None and time.monotonic() < deadline, "no parts came"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(kept) < 8, "the kill did not hit the middle of the pass"

    again = ended(started(tmp_path / "far", slow_model, *told), tmp_path / "far")
    assert again.stages("reused") == ["rows", "screen", "tokens"]
    assert int(again.log.split("resumed: ")[1].split(" of ")[0]) >= len(kept)
    assert again.shards() == local.shards()

    third = ended(started(tmp_path / "far", slow_model, *told), tmp_path / "far")
    assert third.stages("running") == []
    [key] = embed.iterdir()
    names = {path.name for path in key.iterdir()}
    told_names = {part["name"] for part in json.loads((key / "manifest.json").read_text())["parts"]}
    assert names == {*told_names, "manifest.json"}
