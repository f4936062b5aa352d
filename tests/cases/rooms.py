"""The way of a case through the real rooms: rows, screen, tokens."""

import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stages.contract.artifact import Artifact
from stages.rows.stage import ROWS, RowsConfig, RowsSettings
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings
from stages.tokens.stage import TOKENS, TokensConfig, TokensSettings
from tests.artifacts import run_stage
from tests.conftest import SHARED
from tests.tokens.samples import tokenizer_folder


def case(name: str) -> Path:
    """Give the folder of a case, or skip the test."""
    folder = SHARED / "cases" / name
    if not folder.exists():
        pytest.skip(f"the cases are not here: {folder}")
    return folder


def made(script: Path, out: Path) -> Path:
    """Run a case's script in this process; give what it wrote."""
    before = sys.argv
    sys.argv = [str(script), str(out)]
    try:
        runpy.run_path(str(script))
    finally:
        sys.argv = before
    return out


def rows_of(store: Path, path: Path, **keys: Any) -> Artifact:
    """Read a case's file; what is wrong with many of its few rows stops nothing."""
    config = RowsConfig(path=str(path), **{"max_reject_fraction": 1.0, **keys})
    return run_stage(ROWS, RowsSettings(config, store / "hashes"), {}, store)


@dataclass(frozen=True)
class Rooms:
    """What the rooms made of a file, and the names that its rows have for themselves."""

    artifacts: Mapping[str, Artifact]
    ids: list[str]

    @property
    def kept(self) -> list[str]:
        return [self.ids[row_id] for row_id in self.artifacts["tokens"].array("row_id")]

    @property
    def facts(self) -> Any:
        return self.artifacts["tokens"].facts

    @property
    def rejects(self) -> list[dict[str, Any]]:
        """All rejects in order of the rooms."""
        return [
            reject
            for artifact in self.artifacts.values()
            for table in artifact.sides("rejects")
            for reject in table.to_pylist()
        ]

    @property
    def reasons(self) -> dict[str, tuple[str, str]]:
        """Room and reason of each rejected row by its own name, or by its line."""
        return {
            f"line {reject['line']}" if reject["row_id"] is None else self.ids[reject["row_id"]]: (
                reject["stage"],
                reject["reason"],
            )
            for reject in self.rejects
        }

    @property
    def changes(self) -> list[tuple[str, str]]:
        """What the tokens room did to which row."""
        tables = self.artifacts["tokens"].sides("changes-")
        lines = [line for table in tables for line in table.to_pylist()]
        return [(self.ids[line["row_id"]], line["change"]) for line in lines]

    def column(self, name: str) -> dict[str, Any]:
        """Give a column of the tokens by the rows' own names."""
        values = self.artifacts["tokens"].read([name])[name].to_pylist()
        return dict(zip(self.kept, values, strict=True))


def through(
    store: Path, path: Path, *, rows: Mapping[str, Any] | None = None, **tokens: Any
) -> Rooms:
    """Take a file through rows, screen and tokens, duplicates and all."""
    read = rows_of(store, path, **(rows or {}))
    artifacts = {"rows": read}
    config = ScreenConfig(duplicates="keep")
    artifacts["screen"] = run_stage(
        SCREEN, ScreenSettings(config, store / "hashes"), artifacts, store
    )
    keys = {"max_reject_fraction": 1.0, **tokens}
    settings = TokensSettings(TokensConfig(**keys), tokenizer_folder())
    artifacts["tokens"] = run_stage(TOKENS, settings, artifacts, store)
    return Rooms(artifacts, read.read(["uid"])["uid"].to_pylist())
