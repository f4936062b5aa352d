"""Parts over workers: every part once, faults told with names, dead workers replaced."""

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.config import ComputeConfig
from pipeline.failures import PartsFailed
from pipeline.workers import disconnect, spread
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.parts import PartSpec, Receipt, Worker, cut

PARTS = cut(40, 10)


@pytest.fixture(scope="module")
def ray_with_two_pretended_gpus() -> Iterator[None]:
    """A cluster whose nodes only say that they have GPUs, so that scheduling can be tested."""
    import ray

    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    disconnect()


@pytest.fixture(params=[0, 2])
def compute(request: pytest.FixtureRequest) -> ComputeConfig:
    if request.param:
        request.getfixturevalue("ray_with_two_pretended_gpus")
    return ComputeConfig(workers=request.param)


def make_writer(folder: Path, behave: Callable[[PartSpec], None] | None = None) -> Worker:
    """Leave a file per part, and a file per worker that was made."""
    (folder / f"made-{os.getpid()}-{time.monotonic_ns()}").touch()

    def work(spec: PartSpec) -> Receipt:
        if behave is not None:
            behave(spec)
        (folder / spec.name).write_text(str(os.getpid()))
        return Receipt(spec.index, spec.stop - spec.start)

    return work


def fail_second(spec: PartSpec) -> None:
    if spec.index == 1:
        raise RuntimeError("bad row 13")


def refuse(spec: PartSpec) -> None:
    raise DataError("tokens: nothing is left; raise tokens.max_length")


def die_once(folder: Path, spec: PartSpec) -> None:
    died = folder / "died"
    if spec.index == 2 and not died.exists():
        died.touch()
        os._exit(1)


def die_always(spec: PartSpec) -> None:
    if spec.index == 2:
        os._exit(1)


def make_or_die_once(folder: Path) -> Worker:
    died = folder / "died"
    if not died.exists():
        died.touch()
        os._exit(1)
    return make_writer(folder)


def make_broken(folder: Path) -> Worker:
    raise ConfigurationError("model.path: no such model")


def make_on_gpu(folder: Path) -> Worker:
    (folder / f"gpu-{os.getpid()}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
    return make_writer(folder)


def test_every_part_is_done_once_and_its_receipt_comes_back(
    tmp_path: Path, compute: ComputeConfig
) -> None:
    make = functools.partial(make_writer, tmp_path)
    receipts = list(spread(make, PARTS, compute=compute, uses_gpu=False))
    assert sorted(receipt.index for receipt in receipts) == [0, 1, 2, 3]
    assert all((tmp_path / spec.name).exists() for spec in PARTS)
    assert len(list(tmp_path.glob("made-*"))) == max(1, compute.workers)


def test_one_part_is_done_here_whatever_the_workers(tmp_path: Path) -> None:
    make = functools.partial(make_writer, tmp_path)
    list(spread(make, PARTS[:1], compute=ComputeConfig(workers=2), uses_gpu=False))
    assert (tmp_path / PARTS[0].name).read_text() == str(os.getpid())


def test_no_parts_need_no_worker() -> None:
    assert list(spread(pytest.fail, (), compute=ComputeConfig(workers=0), uses_gpu=True)) == []


def test_a_failed_part_is_named_and_the_others_are_kept(
    tmp_path: Path, compute: ComputeConfig
) -> None:
    make = functools.partial(make_writer, tmp_path, fail_second)
    done: list[int] = []
    with pytest.raises(PartsFailed) as caught:
        done.extend(
            receipt.index for receipt in spread(make, PARTS, compute=compute, uses_gpu=False)
        )
    assert sorted(done) == [0, 2, 3]
    message = str(caught.value)
    assert message.startswith("1 of 4 parts failed; the others are kept")
    assert "part 1 (rows 10 to 19): RuntimeError: bad row 13" in message


def test_an_error_for_people_comes_back_as_itself(tmp_path: Path, compute: ComputeConfig) -> None:
    make = functools.partial(make_writer, tmp_path, refuse)
    with pytest.raises(DataError, match=r"raise tokens\.max_length"):
        list(spread(make, PARTS, compute=compute, uses_gpu=False))


def test_a_worker_that_cannot_be_made_says_why(tmp_path: Path, compute: ComputeConfig) -> None:
    make = functools.partial(make_broken, tmp_path)
    with pytest.raises(ConfigurationError, match="no such model"):
        list(spread(make, PARTS, compute=compute, uses_gpu=False))


def test_the_part_of_a_dead_worker_is_tried_again(
    tmp_path: Path, ray_with_two_pretended_gpus: None
) -> None:
    make = functools.partial(make_writer, tmp_path, functools.partial(die_once, tmp_path))
    receipts = list(spread(make, PARTS, compute=ComputeConfig(workers=2), uses_gpu=False))
    assert sorted(receipt.index for receipt in receipts) == [0, 1, 2, 3]


def test_a_worker_that_dies_while_it_gets_ready_is_told_and_replaced(
    tmp_path: Path, ray_with_two_pretended_gpus: None, caplog: pytest.LogCaptureFixture
) -> None:
    make = functools.partial(make_or_die_once, tmp_path)
    receipts = list(spread(make, PARTS, compute=ComputeConfig(workers=2), uses_gpu=False))
    assert sorted(receipt.index for receipt in receipts) == [0, 1, 2, 3]
    assert "a worker died before its first part; hiring another" in caplog.text


def test_a_part_that_kills_every_worker_is_given_up_and_named(
    tmp_path: Path, ray_with_two_pretended_gpus: None
) -> None:
    make = functools.partial(make_writer, tmp_path, die_always)
    done: list[int] = []
    with pytest.raises(PartsFailed, match=r"part 2 \(rows 20 to 29\)"):
        done.extend(
            receipt.index
            for receipt in spread(make, PARTS, compute=ComputeConfig(workers=2), uses_gpu=False)
        )
    assert sorted(done) == [0, 1, 3]


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (ComputeConfig(workers=3, gpus_per_worker=1), ["compute.workers=3", "3 GPUs", "has 2"]),
        (ComputeConfig(workers=2, gpus_per_worker=2), ["4 GPUs", "compute.gpus_per_worker=2"]),
        (ComputeConfig(workers=3), ["compute.workers=3", "3 CPUs", "has 2"]),
    ],
)
def test_workers_that_do_not_fit_are_refused_at_once(
    ray_with_two_pretended_gpus: None, compute: ComputeConfig, words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        list(spread(pytest.fail, PARTS, compute=compute, uses_gpu=compute.gpus_per_worker > 0))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("compute", "gpus"),
    [
        (ComputeConfig(workers=2, gpus_per_worker=1), {"0", "1"}),
        (ComputeConfig(workers=1, gpus_per_worker=2), {"0,1"}),
    ],
    ids=["one each", "two for one model"],
)
def test_each_worker_sees_its_own_gpus(
    tmp_path: Path, ray_with_two_pretended_gpus: None, compute: ComputeConfig, gpus: set[str]
) -> None:
    make = functools.partial(make_on_gpu, tmp_path)
    list(spread(make, PARTS, compute=compute, uses_gpu=True))
    assert {file.read_text() for file in tmp_path.glob("gpu-*")} == gpus
