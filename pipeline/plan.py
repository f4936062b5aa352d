"""The plan: seven stages in order, each reused where its result is already in the store.

Further passes, for selectors that read them, stand between `embed` and `cluster`.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.budgets import check_budget, check_selection
from pipeline.config import Config, settings_of
from pipeline.passes import FurtherPasses, pass_settings, passes_read, passes_there
from pipeline.progress import Progress, clock
from pipeline.versions import package_versions
from pipeline.workers import check_gpus, disconnect, spread
from stages.allocate.stage import ALLOCATE_STAGE
from stages.cluster.stage import CLUSTER_STAGE
from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DraftGone
from stages.contract.fingerprint import artifact_key
from stages.contract.folder import StorePath, hash_cache_of, store_path
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt
from stages.contract.shown import flat
from stages.contract.stage import Stage
from stages.embed.checkpoint import check_max_length, resolve_model
from stages.embed.stage import EMBED, check_rejects
from stages.rows.stage import ROWS, RowsSettings
from stages.screen.stage import SCREEN, ScreenSettings
from stages.shards.card import Published
from stages.shards.publish import publish
from stages.shards.stage import SHARDS, ShardsSettings
from stages.tokens.stage import TOKENS, TokensSettings

log = logging.getLogger(__name__)

PLAN: tuple[Stage, ...] = (ROWS, SCREEN, TOKENS, EMBED, CLUSTER_STAGE, ALLOCATE_STAGE, SHARDS)
BEFORE_MODEL = ("rows", "screen", "tokens")


@dataclass(frozen=True)
class StepReport:
    """What became of one stage.

    Attributes
    ----------
    artifact : Artifact
        Its result.
    reused : bool
        Whether it was there already.
    parts_reused : int
        Parts that a killed run had left finished.
    seconds : float
        How long it took.
    """

    artifact: Artifact
    reused: bool
    parts_reused: int
    seconds: float


@dataclass(frozen=True)
class RunReport:
    """What became of a run: one report per stage, and the published set."""

    steps: dict[str, StepReport]
    manifest: Published
    out: Path


def run_plan(config: Config, overrides: Sequence[str]) -> RunReport:
    """Run or reuse every stage, then publish."""
    every = run_stages(config, check=check_selection)
    # What `allocate` read beside the plan is named by the key of its own manifest.
    reports = {stage.name: every[stage.name] for stage in PLAN}
    artifacts = {name: report.artifact for name, report in reports.items()}
    out = Path(config.out)
    manifest = publish(
        out,
        artifacts,
        name=config.name,
        seed=config.seed,
        settings=settings_of(config),
        overrides=list(overrides),
        versions=package_versions(),
    )
    return RunReport(reports, manifest, out)


def run_stages(
    config: Config,
    *,
    last: str = "shards",
    check: Callable[[Config, Artifact], None] = check_budget,
) -> dict[str, StepReport]:
    """Run or reuse the stages up to `last`, and the further passes that are read.

    Before `allocate` is reached it is open who will read: up to `cluster` all further passes are
    made that the configuration has. They are `reference`, `targets` and `trajectory`.

    What can be known from the configuration was checked before; what needs the rows, `check` is
    asked right after `rows`, and again after `screen` and `tokens`, before a model is loaded.
    Whether there are the GPUs of a pass that is still to be made is asked before all.
    """
    store = store_path(config.store)
    reports: dict[str, StepReport] = {}
    names = passes_read(config) if last in ("allocate", "shards") else passes_there(config)

    def further(stage: Stage, settings: Any, read: Mapping[str, Artifact], by: str) -> StepReport:
        told_as = by if by == stage.name else f"{by}.{stage.name}"
        return run_stage(stage, settings, read, store, config, told_as=told_as)

    passes = FurtherPasses(config, names, further)
    passes.check()
    try:
        if config.compute.gpus_per_worker > 0 and last not in BEFORE_MODEL:
            if not _is_finished("embed", store, config):
                check_gpus(config.compute)
        for stage in PLAN:
            settings = stage_settings(stage.name, config)
            artifacts = {name: report.artifact for name, report in reports.items()}
            reports[stage.name] = run_stage(stage, settings, artifacts, store, config)
            if stage.name in BEFORE_MODEL:
                check(config, reports[stage.name].artifact)
            if stage is TOKENS:
                passes.prepare(reports)
            if stage is EMBED:
                _check_embedded(reports["embed"].artifact, config)
                reports |= passes.make(reports)
            if stage.name == last:
                break
    finally:
        disconnect()
    return reports


def _check_embedded(embed: Artifact, config: Config) -> None:
    """Ask again how many rows may lack numbers: a pass may be reused that was let through."""
    facts = embed.facts
    check_rejects(facts["kept"], facts["rejected"], config.embed.max_reject_fraction, embed.path)


def _is_finished(last: str, store: StorePath, config: Config) -> bool:
    """Say whether all stages up to one are in the store; their keys need no rows."""
    keys: dict[str, str] = {}
    for stage in PLAN:
        inputs = {read: keys[read] for read in stage.reads}
        params = stage.identity(stage_settings(stage.name, config))
        keys[stage.name] = artifact_key(stage.name, stage.version, params, inputs)
        if not (store / stage.name / keys[stage.name] / MANIFEST).exists():
            return False
        if stage.name == last:
            break
    return True


def stage_settings(name: str, config: Config) -> Any:
    """Gather what one stage is told; only here is it known which sections it reads."""
    hash_cache = hash_cache_of(config.store, config.models)
    if name == "rows":
        return RowsSettings(rows=config.rows, hash_cache=hash_cache)
    if name == "screen":
        return ScreenSettings(screen=config.screen, hash_cache=hash_cache)
    if name == "cluster":
        return config.cluster
    if name == "allocate":
        return config.allocate
    if name == "shards":
        return ShardsSettings(config.allocate.num_workers)
    folder = resolve_model(config.model.path, Path(config.models))
    if name == "tokens":
        check_max_length(folder, config.tokens.max_length)
        return TokensSettings(tokens=config.tokens, tokenizer=folder)
    return pass_settings(config, config.model, folder, config.embed)


def run_stage(
    stage: Stage,
    settings: Any,
    artifacts: Mapping[str, Artifact],
    store: StorePath,
    config: Config,
    *,
    told_as: str = "",
) -> StepReport:
    """Find a stage's result in the store, or make it; `told_as` is its name in the log."""
    started = time.monotonic()
    name = told_as or stage.name
    inputs = stage.inputs_of(artifacts)
    keys = {read: artifact.key for read, artifact in inputs.items()}
    params = stage.identity(settings)
    key = artifact_key(stage.name, stage.version, params, keys)
    final = store / stage.name / key
    if (final / MANIFEST).exists():
        artifact = Artifact.open(final)
        log.info("%-8s reused  %s  %d rows", name, key, artifact.num_rows)
        return StepReport(artifact, True, 0, time.monotonic() - started)
    # A further pass differs from the newest of its stage in what makes it another pass.
    why = "" if told_as else _why(store / stage.name, params, keys)
    log.info("%-8s running %s%s", name, key, why)
    draft = Draft.create(store, stage.name, key)
    parts_reused = 0
    try:
        outcome, parts_reused = _drive(stage, settings, inputs, draft, config)
        artifact = draft.commit(
            outcome,
            params=params,
            inputs=keys,
            version=stage.version,
            parent=inputs[stage.reads[0]] if stage.reads else None,
            keeps_order=stage.keeps_order,
        )
    except (DraftGone, FileNotFoundError):
        # Two runs of one key share a draft; when the other commits it, ours is gone.
        if not (final / MANIFEST).exists():
            raise
        log.info("%-8s another run has finished %s; its result is used", name, key)
        artifact = Artifact.open(final)
    seconds = time.monotonic() - started
    log.info("%-8s done    %s  %d rows in %s", name, key, artifact.num_rows, clock(seconds))
    return StepReport(artifact, False, parts_reused, seconds)


def _drive(
    stage: Stage, settings: Any, inputs: Mapping[str, Artifact], draft: Draft, config: Config
) -> tuple[Outcome, int]:
    """Pull a stage's receipts until it returns its outcome."""
    progress = Progress(stage.name)

    def spread_and_expect(
        make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool
    ) -> Iterator[Receipt]:
        if progress.reused:
            log.info(
                "%-8s resumed: %d of %d parts of an earlier run are reused",
                stage.name,
                progress.reused,
                progress.reused + len(parts),
            )
        progress.expect(len(parts))
        return spread(make, parts, compute=config.compute, uses_gpu=uses_gpu)

    receipts = stage.run(settings, inputs, draft, spread_and_expect)
    try:
        while True:
            progress.add(next(receipts))
    except StopIteration as stop:
        outcome: Outcome = stop.value
    finally:
        progress.finish()
    return outcome, progress.reused


def _why(folder: StorePath, params: Facts, keys: Mapping[str, str]) -> str:
    """Say which setting differs from the newest result of the stage, if there is one."""
    manifests = [path / MANIFEST for path in folder.glob("*") if (path / MANIFEST).exists()]
    if not manifests:
        return ""
    newest = max(manifests, key=lambda path: path.stat().st_mtime_ns)
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(newest.read_text(encoding="utf-8"))
        before = {**flat(found["params"]), **flat(found["inputs"], "input ")}
        now = {**flat(params), **flat(keys, "input ")}
        changed = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        if changed:
            return f"  (changed since {newest.parent.name}: {', '.join(changed[:4])})"
    return ""
