"""Ray nodes as real processes on this machine, started as a person would, and killed without mercy.

All of them listen on one address of this machine; each has its own ports, object store and
workers, so that to Ray they are machines.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

from tests.pipeline.runs import environment

RAY = str(Path(sys.executable).with_name("ray"))
STORE_BYTES = 100 << 20


@dataclass
class Node:
    """One `ray start --block` and what it started."""

    name: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a power cut does: SIGKILL to each of its processes, children first."""
        for pid in [*reversed(descendants(self.process.pid)), self.process.pid]:
            with _if_there():
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Cluster:
    """A head and its nodes; `address` is for drivers, `dashboard` for jobs."""

    folder: Path
    gcs_port: int
    dashboard_port: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    nodes: list[Node] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What drivers and nodes need; the token is this cluster's own, never the user's."""
        return {
            **environment(),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "OMP_NUM_THREADS": "1",
            # For a machine that is busy with other tests.
            "RAY_raylet_start_wait_time_s": "600",
            "RAY_worker_register_timeout_seconds": "300",
        }

    @property
    def address(self) -> str:
        return f"{host_address()}:{self.gcs_port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def add(self, name: str, *, cpus: int, gpus: int = 0) -> Node:
        """Start a node, the head if it is the first, and wait until the cluster counts it."""
        if self.nodes:
            role = [f"--address={self.address}"]
        else:
            role = [
                *("--head", f"--port={self.gcs_port}", "--dashboard-host=127.0.0.1"),
                f"--dashboard-port={self.dashboard_port}",
                "--include-dashboard=true",
            ]
        # Of its own: a node that unpacks a job's working directory removes what lies there first.
        own = self.folder / name
        process = subprocess.Popen(
            [
                *(RAY, "start", "--block", *role, f"--num-cpus={cpus}", f"--num-gpus={gpus}"),
                *(f"--node-name={name}", "--disable-usage-stats"),
                *(f"--object-store-memory={STORE_BYTES}", f"--temp-dir={own}"),
                *(f"--dashboard-agent-listen-port={free_port()}",),
            ],
            env=self.environment,
            stdout=(self.folder / f"{name}.out").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        node = Node(name, process)
        self.nodes.append(node)
        self._wait_for(node)
        return node

    def _wait_for(self, node: Node) -> None:
        deadline = time.monotonic() + 600
        while node.name not in self.alive():
            told = (self.folder / f"{node.name}.out").read_text(errors="replace")
            assert node.process.poll() is None and time.monotonic() < deadline, told
            time.sleep(0.5)

    def alive(self) -> set[str]:
        """Names of the nodes that the cluster counts among the living."""
        request = Request(
            f"{self.dashboard}/nodes?view=summary",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        try:
            with urlopen(request, timeout=5) as answer:
                told = json.load(answer)["data"]["summary"]
        except OSError:  # the dashboard is not up yet
            return set()
        return {
            node["raylet"].get("nodeName", "")
            for node in told
            if node["raylet"].get("state") == "ALIVE"
        }

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Make an empty cluster; its first `add` is the head. The folder's name must be short."""
    made = Cluster(Path(tempfile.mkdtemp(prefix="even")), free_port(), free_port())
    try:
        yield made
    finally:
        made.stop()


def host_address() -> str:
    """The address that Ray takes for this machine, which no packet leaves."""
    from ray.util import get_node_ip_address

    address: str = get_node_ip_address()
    return address


def descendants(pid: int) -> list[int]:
    """Give the living processes below one, parents before children."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def command_of(pid: int) -> str:
    """Say what a process was started as."""
    with _if_there():
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with _if_there():
            children += map(int, task.read_text().split())
    return children


@contextmanager
def _if_there() -> Iterator[None]:
    try:
        yield
    except (ProcessLookupError, FileNotFoundError):
        pass
