"""The stage without the pipeline, and the folder of real files where it is present."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import Receipt
from stages.rows.stage import ROWS, RowsConfig, RowsSettings

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.fixture(scope="session")
def formats() -> Path:
    folder = SHARED / "data" / "formats"
    if not folder.exists():
        pytest.skip(f"real files are not here: {folder}")
    return folder


@pytest.fixture(scope="session")
def cases() -> Path:
    folder = SHARED / "cases"
    if not folder.exists():
        pytest.skip(f"the cases are not here: {folder}")
    return folder


Curate = Callable[..., tuple[Artifact, list[Receipt]]]


@pytest.fixture
def curate(tmp_path: Path) -> Curate:
    """Run the stage in a new store; give the artifact and the receipts."""

    def run(config: RowsConfig, *, store: str = "store") -> tuple[Artifact, list[Receipt]]:
        settings = RowsSettings(config, tmp_path / "hashes")
        draft = Draft.create(tmp_path / store, "rows", "k")
        steps = ROWS.run(settings, {}, draft, _no_workers)
        receipts = []
        while True:
            try:
                receipts.append(next(steps))
            except StopIteration as end:
                outcome = end.value
                break
        params = ROWS.identity(settings)
        artifact = draft.commit(
            outcome,
            params=params,
            inputs={},
            version=ROWS.version,
            parent=None,
            keeps_order=ROWS.keeps_order,
        )
        return artifact, receipts

    return run


def _no_workers(make: Any, parts: Any, *, uses_gpu: bool) -> Any:
    raise AssertionError("rows are read in one process")


WriteLines = Callable[[str, Sequence[object]], Path]


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    """Write a .jsonl file of objects, or of bytes as they are."""

    def write(name: str, lines: Sequence[object]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = [
            line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
            for line in lines
        ]
        path.write_bytes(b"".join(line + b"\n" for line in raw))
        return path

    return write
