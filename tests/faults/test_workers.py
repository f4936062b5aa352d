"""Where workers find room: on one node each, and on none when all of those are gone."""

from collections import deque
from typing import Any

import pytest

from pipeline import workers
from pipeline.config import ComputeConfig
from pipeline.failures import PartsFailed
from pipeline.workers import _Crew, _Task, check_gpus
from stages.contract.errors import ConfigurationError
from stages.contract.parts import cut


def node(cpus: float, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


def crew_of(
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, Any]],
    *,
    size: int,
    cpus: float,
    gpus: float,
) -> _Crew:
    """A crew that believes in these nodes, without Ray."""
    import ray

    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    living = [n["Resources"] for n in nodes if n["Alive"]]
    totals = {name: sum(have[name] for have in living) for name in ("CPU", "GPU")}
    monkeypatch.setattr(ray, "cluster_resources", lambda: totals)
    crew = object.__new__(_Crew)
    crew.size, crew.cpus, crew.gpus = size, cpus, gpus
    crew.tasks, crew.queue = {}, deque()
    return crew


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "places"),
    [
        ([node(4)], 1, 0, 4),
        ([node(4), node(3)], 2, 0, 3),
        ([node(1), node(1), node(1)], 2, 0, 0),
        ([node(8, 4), node(2, 4)], 1, 1, 6),
        ([node(8, 3)], 1, 2, 1),
        ([node(8, 4, alive=False), node(2, 1)], 1, 1, 1),
        ([node(1)], 0.1, 0, 10),
    ],
)
def test_a_worker_lies_on_one_node(
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, Any]],
    cpus: float,
    gpus: float,
    places: int,
) -> None:
    assert crew_of(monkeypatch, nodes, size=1, cpus=cpus, gpus=gpus)._places() == places


def test_workers_that_fit_the_sum_and_no_node_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = crew_of(monkeypatch, [node(1), node(1), node(1), node(1)], size=2, cpus=2, gpus=0)
    with pytest.raises(ConfigurationError, match=r"compute\.workers=2 .* room for 0"):
        crew._check_room(ComputeConfig(workers=2, cpus_per_worker=2))


def test_a_crew_gives_up_only_when_no_node_could_hold_a_worker_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 10_000.0
    monkeypatch.setattr(workers.time, "monotonic", lambda: now)
    crew = crew_of(monkeypatch, [node(2)], size=1, cpus=1, gpus=1)
    crew.tasks = {"a": _Task(None, None, now - workers.SECONDS_WITHOUT_ROOM + 1)}
    crew._check_still_room()
    crew.tasks = {"a": _Task(None, None, 0.0)}
    with pytest.raises(PartsFailed, match="start nodes and run again"):
        crew._check_still_room()
    monkeypatch.setattr("ray.nodes", lambda: [node(2, 1)])
    crew._check_still_room()


def test_a_later_stage_goes_on_with_the_nodes_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that died in one stage must not stop the next, which asks for as many workers."""
    monkeypatch.setattr(workers, "FITTED", set())
    compute = ComputeConfig(workers=2)
    first = crew_of(monkeypatch, [node(1), node(1)], size=2, cpus=1, gpus=0)
    first._check_room(compute)
    later = crew_of(monkeypatch, [node(1), node(1, alive=False)], size=2, cpus=1, gpus=0)
    later._check_room(compute)
    assert (first.size, later.size) == (2, 1)
    none = crew_of(monkeypatch, [node(1, alive=False)], size=2, cpus=1, gpus=0)
    with pytest.raises(ConfigurationError, match="the cluster has 0"):
        none._check_room(compute)


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A Ray that this process starts with as many slots as it is told, and no GPU."""
    import ray

    have: dict[str, float] = {}

    def init(*, num_cpus: int, **others: object) -> None:
        have["CPU"] = num_cpus

    monkeypatch.setattr(ray, "is_initialized", lambda: bool(have))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "cluster_resources", lambda: have)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": have}])
    monkeypatch.setattr(workers, "FITTED", set())
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda pid: {0})
    return have


def test_the_first_stage_leaves_room_for_the_workers_of_a_later_one(
    own_ray: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """Few parts come first; a cluster of our own is started once, for all stages."""
    compute = ComputeConfig(workers=4, cpus_per_worker=1.5)
    few = _Crew(lambda: None, cut(2, 1), compute, uses_gpu=False)  # type: ignore[arg-type, return-value]
    assert (few.size, own_ray["CPU"]) == (2, 6)
    many = _Crew(lambda: None, cut(9, 1), compute, uses_gpu=False)  # type: ignore[arg-type, return-value]
    assert many.size == 4
    assert "lost nodes" not in caplog.text


def test_gpus_are_counted_for_all_workers_of_a_cluster(own_ray: dict[str, float]) -> None:
    compute = ComputeConfig(workers=2, gpus_per_worker=1)
    with pytest.raises(ConfigurationError, match=r"compute\.workers=2 needs 2 GPUs .* has 0"):
        check_gpus(compute)
    own_ray["GPU"] = 2
    check_gpus(compute)


def test_gpus_are_counted_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_gpus(ComputeConfig(gpus_per_worker=1))
    with pytest.raises(ConfigurationError) as caught:
        check_gpus(ComputeConfig(gpus_per_worker=2))
    assert str(caught.value).startswith("compute.gpus_per_worker=2 must be <= 1, the GPUs that")
    assert "set compute.gpus_per_worker=0" in str(caught.value)
