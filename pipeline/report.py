"""A finished run, opened again from its folder and the store: its report, and the life of a row."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.shards import Manifest, ShardError, read_manifest
from pipeline.config import compose_raw
from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.folder import StorePath, store_path
from stages.report.write import write_report
from stages.shards.publish import COMPARISON

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """A published folder and the artifacts that it was made from."""

    out: Path
    manifest: Manifest
    artifacts: Mapping[str, Artifact]


def report_run(overrides: Sequence[str]) -> Path:
    """Make the report of the run that `name=` or `out=` names again, from its artifacts."""
    run = open_run(overrides)
    return report_of(run.out, run.artifacts, run.manifest)


def report_of(out: Path, artifacts: Mapping[str, Artifact], manifest: Mapping[str, Any]) -> Path:
    """Write the report of a run, with the comparison of its rows where one lies in its folder."""
    compare = read_compare(out)
    if compare is None:
        return write_report(out, artifacts, manifest)
    reason = why_of_other_rows(compare, manifest)
    if reason:
        log.warning("report   %s is left out: %s", out / COMPARISON[0], reason)
        compare = None
    return write_report(out, artifacts, manifest, compare, left_out=reason)


def why_of_other_rows(compare: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """Say why a comparison is not one of a run's rows; empty where it is.

    A folder keeps its comparison when another set is curated into it. The key of `tokens` names
    the rows, the screen and the tokens; that of `embed` differs, since a comparison reads more.
    """
    keys = compare.get("keys")
    found = keys.get("tokens") if isinstance(keys, Mapping) else None
    if found == manifest["keys"]["tokens"]:
        return ""
    of = f"of other rows or other tokens ({found})" if found else "from before it named its rows"
    return f"the comparison in this folder is {of}, not of this set; `make compare` makes one of it"


def open_run(overrides: Sequence[str]) -> Finished:
    """Open the run that `name=` or `out=` names.

    Raises
    ------
    ConfigurationError
        If there is no finished run, or the store no longer holds what it was made from.
    """
    config = compose_raw(overrides)
    given = any(override.startswith("store=") for override in overrides)
    return open_folder(Path(config.out), store_path(config.store) if given else None)


def open_folder(out: Path, store: StorePath | None = None) -> Finished:
    """Open a published folder and its artifacts.

    Parameters
    ----------
    out : Path
        The published folder.
    store : Path, optional
        Where its artifacts are; by default where its manifest says.

    Raises
    ------
    ConfigurationError
        If there is no finished run, or the store no longer holds what it was made from.
    """
    try:
        manifest = read_manifest(out)
    except ShardError as error:
        raise ConfigurationError(f"out={out} holds no finished run; {error}") from error
    store = store or store_path(manifest["settings"]["store"])
    artifacts = {}
    for stage, key in manifest["keys"].items():
        folder = store / stage / key
        if not (folder / MANIFEST).exists():
            raise ConfigurationError(
                f"{folder} is gone, and {out} was made from it; curate again with the settings of "
                f"the folder's manifest, or give store=... if the store has moved"
            )
        artifacts[stage] = Artifact.open(folder)
    return Finished(out, manifest, artifacts)


def read_compare(out: Path) -> dict[str, Any] | None:
    """Read the comparison that lies in a run's folder, if there is one.

    Raises
    ------
    DataError
        If the file is not what `compare` writes.
    """
    path = out / COMPARISON[0]
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); run `compare` again") from error
    if not isinstance(found, dict) or not isinstance(found.get("table"), list):
        raise DataError(f"{path} has no table; run `compare` again")
    return found
