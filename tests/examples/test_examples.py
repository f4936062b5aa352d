"""Every program of examples/ trains two ranks, and docs/trainers.md shows lines that are in it."""

import importlib.util
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from evenshard.export import export
from tests.conftest import ROOT
from tests.evenshard.tiny_training import (
    explicit_gradient,
    load_model,
    plan_of,
    steps_of,
    write_uneven_set,
)
from tests.examples.programs import EXAMPLES, losses

STEPS = 3  # of an epoch of `write_uneven_set`
DOCS = ROOT / "docs" / "trainers.md"

# A program, what must be installed, and further words.
PROGRAMS = [
    ("fsdp2", "torch", ()),
    ("hf_trainer", "accelerate", ()),
    ("trl_sft", "trl", ()),
    ("trl_sft", "trl", ("--padding-free",)),
    ("accelerate_loop", "accelerate", ()),
    ("deepspeed_loop", "deepspeed", ("--stage", "1")),
    ("deepspeed_loop", "deepspeed", ("--stage", "2")),
    ("ray_train", "ray", ()),
    ("lightning_loop", "lightning", ()),
]


def check(found: list[float], model_folder: Path, folder: Path, num_steps: int) -> None:
    """Check the number of losses, and the first one against the explicit sum."""
    assert len(found) == num_steps
    assert all(map(math.isfinite, found))
    [first, *_] = steps_of(plan_of(folder))
    _, expected = explicit_gradient(load_model(model_folder), first, "sample")
    assert found[0] == pytest.approx(expected, rel=1e-5)


def test_ddp(tmp_path: Path, model_folder: Path) -> None:
    folder = write_uneven_set(tmp_path / "set")
    words = str(folder), str(model_folder), "--epochs", "2", "--lr", "0"
    whole = losses("ddp", tmp_path, *words)
    check(whole, model_folder, folder, 2 * STEPS)
    assert losses("ddp", tmp_path, *words, "--steps-done", "4") == whole[4:]


@pytest.mark.trainers
@pytest.mark.parametrize(("name", "module", "words"), PROGRAMS)
def test_example(
    tmp_path: Path, model_folder: Path, name: str, module: str, words: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no module named {module}")
    folder = write_uneven_set(tmp_path / "set")
    found = losses(name, tmp_path, str(folder), str(model_folder), *words)
    check(found, model_folder, folder, STEPS)


@pytest.mark.trainers
def test_stock_trainer_on_an_export(tmp_path: Path, model_folder: Path) -> None:
    pytest.importorskip("accelerate")
    folder = write_uneven_set(tmp_path / "set")
    block = export(folder, "block", out=tmp_path / "block").folder
    found = losses("hf_trainer_stock", tmp_path, str(folder), str(model_folder), str(block))
    check(found, model_folder, folder, STEPS)


@pytest.mark.trainers
def test_ddp_and_trl_train_alike(tmp_path: Path, model_folder: Path) -> None:
    """Issue 3, show 5: the same losses over 50 steps, while the model really learns."""
    pytest.importorskip("trl")
    folder = write_uneven_set(tmp_path / "set")
    words = str(folder), str(model_folder), "--epochs", "17", "--lr", "1e-3"
    ddp = losses("ddp", tmp_path, *words)
    assert len(ddp) == 17 * STEPS
    for flag in ((), ("--padding-free",)):
        trl = losses("trl_sft", tmp_path, *words, *flag)
        worst = max(abs(one - other) for one, other in zip(ddp, trl, strict=True))
        print(f"MEASURED ddp and trl {flag}: {worst:.1e}, from {ddp[0]:.3f} to {ddp[-1]:.3f}")
        assert worst < 1e-4
    assert ddp[-1] < 0.9 * ddp[0]


def shown() -> list[tuple[str, str]]:
    """Give the code blocks of the docs that are said to be from an example."""
    text = DOCS.read_text(encoding="utf-8")
    return re.findall(r"<!-- from examples/(\w+\.py) -->\n```python\n(.*?)```", text, re.DOTALL)


def test_the_docs_show_lines_of_the_examples() -> None:
    blocks = shown()
    assert {name for name, _ in blocks} == {path.name for path in EXAMPLES.glob("*.py")}
    for name, block in blocks:
        lines = [line.strip() for line in (EXAMPLES / name).read_text("utf-8").splitlines()]
        place = 0
        for line in filter(None, map(str.strip, block.splitlines())):
            if line != "...":
                assert line in lines[place:], f"{line!r} is shown, but not there in {name}"
                place = lines.index(line, place) + 1


def test_the_docs_say_of_every_trainer_whether_it_was_run() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(table) == 14
    for line in table:
        assert re.search(r"\| (run: \w+ [\d.]+|only read: commit \w{8})", line), line


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_checks_its_start(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 115
    assert "check_start(" in text or "WeightedShards," in text
    assert "Trap" in text.split('"""')[1]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_takes_the_objective_of_the_set(path: Path) -> None:
    """A fixed one would weigh a set of another objective wrongly."""
    text = path.read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if '"--objective"' in line]
    assert 'default="sample"' not in line
    assert '["objective"]' in text or 'default=""' in line  # which the mixin reads from the set


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "deepspeed_loop"])
def test_a_process_takes_its_gpu_before_its_group(name: str) -> None:
    """NCCL gathers objects, as `check_start` does, on the current device: else GPU 0 of all."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    group = re.search(r"init_process_group\(|init_distributed\(", text)
    assert group is not None
    assert 0 < text.find('set_device(int(os.environ["LOCAL_RANK"]))') < group.start()
