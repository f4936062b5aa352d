"""The walls of the house: who may import whom, who may touch the disk, and how long files are."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("evenshard", "stages", "pipeline")
FILES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
ROOMS_OF_MATHS = ("screen", "tokens", "embed", "cluster", "allocate", "trajectory")
# Doors to the disk; every other file of a room of maths is functions of arrays.
DOORS = {"stage.py", "worker.py", "reading.py", "checkpoint.py", "model.py", "tokenizer.py"}
MOST_LINES, MOST_LINES_OF_FUNCTION = 400, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def top(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    above = {
        "evenshard": {"stages", "pipeline", "tests", "ray", "hydra", "sklearn"},
        "stages": {"pipeline", "tests", "ray", "hydra"},
        "pipeline": {"tests"},
    }[path.relative_to(ROOT).parts[0]]
    assert not {top(module) for module in imports(path)} & above - (
        {"ray"} if name_of(path) == "pipeline/workers.py" else set()
    )


def test_one_file_knows_ray() -> None:
    knowing = [name_of(path) for path in FILES if "ray" in map(top, imports(path))]
    assert knowing == ["pipeline/workers.py"]


def test_stages_know_only_the_shard_contract_of_evenshard() -> None:
    for path in (ROOT / "stages").rglob("*.py"):
        known = {module for module in imports(path) if top(module) == "evenshard"}
        assert known <= {"evenshard.shards"}, name_of(path)


@pytest.mark.parametrize(
    "path",
    [
        p
        for room in ROOMS_OF_MATHS
        for p in sorted((ROOT / "stages" / room).rglob("*.py"))
        if p.name not in DOORS
    ],
    ids=name_of,
)
def test_maths_touches_no_disk(path: Path) -> None:
    forbidden = {"os", "pathlib", "shutil", "pyarrow.parquet", "io", "tempfile"}
    if path.parent.name == "selectors" and path.name == "__init__.py":
        forbidden = set()  # it lists the folder to find the selectors
    assert not set(imports(path)) & forbidden
    calls = [
        n.func.id
        for n in ast.walk(tree(path))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert "open" not in calls


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            docstring = ast.get_docstring(node)
            if docstring:
                lines -= len(docstring.splitlines()) + 1
            assert lines <= MOST_LINES_OF_FUNCTION, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_print_outside_the_edges_and_no_tunnels(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print" or path.name == "__main__.py"
        if isinstance(node, ast.FunctionDef):
            assert node.args.kwarg is None, f"{node.name} takes **{node.args.kwarg}"
    assert path.name != "utils.py"


def test_configuration_is_checked_without_loading_anything_heavy() -> None:
    code = (
        "import sys; from pipeline.config import compose, check_paths; check_paths(compose([]));"
        "heavy = {'torch', 'transformers', 'ray', 'sklearn', 'datasets'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
