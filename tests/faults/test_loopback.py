"""A cluster that a run starts for itself is not reachable from outside this machine."""

import json
import subprocess
import sys

from tests.conftest import ROOT

PROGRAM = r"""
import json, os, re
from pathlib import Path
from pipeline.workers import connect, disconnect

connect("", num_cpus=1)
import ray

remote = ray.remote(num_cpus=0.1)
worker = remote(lambda: [Path("/proc/self/stat").read_text().split()[0]])
ray.get(worker.remote())

def below(pid):
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from below(child)

sockets = set()
for pid in below(os.getpid()):
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            sockets |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    except FileNotFoundError:
        pass
listening = {}
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:
            address, port = fields[1].split(":")
            listening[int(port, 16)] = address
print(json.dumps(listening))
disconnect()
"""

# 127.0.0.1 as the kernel writes it, alone and inside an IPv6 address; and ::1.
LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def test_every_port_of_a_run_with_workers_is_on_loopback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    listening = json.loads(done.stdout.splitlines()[-1])
    assert len(listening) >= 4, "the servers of Ray were not found, so nothing was tested"
    open_to_all = {port: where for port, where in listening.items() if where not in LOOPBACK}
    assert open_to_all == {}
