"""deploy/: the manifest has what KubeRay asks for, the Slurm script what a run asks for."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import compose
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
# Of the RayJob kind, version v1: what a spec may hold that we use, and what each group must hold.
KNOWN = {
    *("entrypoint", "runtimeEnvYAML", "submissionMode", "backoffLimit", "rayClusterSpec"),
    *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "metadata"),
}
KNOWN_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
HEAD = {"rayStartParams", "template", "serviceType"}


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    return loaded


def test_the_manifest_has_the_fields_of_a_rayjob_and_no_others(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch("[a-z0-9-]+", job["metadata"]["name"])
    spec = job["spec"]
    assert set(spec) <= KNOWN
    assert spec["submissionMode"] in ("K8sJobMode", "HTTPMode")
    assert isinstance(spec["backoffLimit"], int) and spec["shutdownAfterJobFinishes"] is True
    assert isinstance(yaml.safe_load(spec["runtimeEnvYAML"]), dict)
    cluster = spec["rayClusterSpec"]
    assert set(cluster) == KNOWN_CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD
    groups = cluster["workerGroupSpecs"]
    assert all(set(group) == GROUP for group in groups)
    for group in [cluster["headGroupSpec"], *groups]:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        [container] = group["template"]["spec"]["containers"]
        assert {"name", "image", "resources", "volumeMounts"} <= set(container)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}


def test_the_run_of_the_manifest_is_a_right_one_and_fits_its_workers(
    job: dict[str, Any], model_folder: Path
) -> None:
    entrypoint = job["spec"]["entrypoint"].replace("/shared/model ", f"{model_folder} ")
    words = shlex.split(entrypoint)
    assert words[:4] == ["python", "-m", "pipeline", "curate"]
    config = compose(words[4:])
    assert config.compute.address == "auto"
    places = 0
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        [container] = group["template"]["spec"]["containers"]
        places += group["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert places == config.compute.workers * config.compute.gpus_per_worker
    for path in (config.store, config.models, config.out, config.rows.path):
        assert any(path.startswith(f"{mount}/") for mount in mounts), path


def test_image_and_manifest_name_one_version_of_ray(job: dict[str, Any]) -> None:
    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"FROM rayproject/ray:{version}-" in (DEPLOY / "Dockerfile").read_text()


def test_the_slurm_script_starts_a_head_and_the_other_nodes_and_then_the_run(
    tmp_path: Path,
) -> None:
    """With stand-ins for Slurm and Ray that write down what they were asked."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    calls = tmp_path / "calls"
    stubs = {
        "srun": 'while [[ "$1" == -* ]]; do [ "$1" = -w ] && shift; shift; done; exec "$@"',
        "scontrol": "printf 'n1\\nn2\\n'",
        "hostname": "echo 10.0.0.1",
        ".venv/bin/ray": '[ "$1" = status ] && printf " 1 node_a\\n 1 node_b\\n" || '
        f'echo "ray $*" >> {calls}',
        ".venv/bin/python": f'sleep 1; echo "python $*" >> {calls}',
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "16",
    }
    done = subprocess.run(
        ["bash", str(DEPLOY / "slurm.sh"), "rows.path=/shared/my.jsonl"],
        env={**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = calls.read_text().splitlines()
    [head] = [line for line in told if "--head" in line]
    [other] = [line for line in told if "--address=10.0.0.1:20007" in line and "ray start" in line]
    assert "--node-ip-address=10.0.0.1 --port=20007 --include-dashboard=false" in head
    assert "--num-gpus=4" in head and "--num-gpus=4" in other
    [run] = [line for line in told if line.startswith("python")]
    words = run.split()
    assert words[:4] == ["python", "-m", "pipeline", "curate"]
    config = compose(words[4:])
    assert (config.compute.workers, config.compute.address) == (8, "10.0.0.1:20007")
    assert config.rows.path == "/shared/my.jsonl"
