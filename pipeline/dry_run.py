"""What a run would do, from rows and tokens alone: counts, rejects, an estimate, three rows.

Nothing here loads a model. What it reads is kept in the store, so the run itself goes on from it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.shards import IGNORED_LABEL
from pipeline.config import Config
from pipeline.plan import StepReport, stage_settings
from pipeline.progress import clock, compact
from stages.contract.artifact import Artifact
from stages.embed.checkpoint import hidden_size, num_parameters
from stages.embed.estimate import embedding_bytes, features_dim, forward_seconds
from stages.embed.stage import EmbedSettings
from stages.screen.evidence import duplicates_text, leak_text, leaks_text

EXAMPLES_PER_REASON = 3
ROWS_SHOWN = 3
OPEN, CLOSE = "«", "»"


def describe(config: Config, reports: Mapping[str, StepReport]) -> str:
    """Write the whole report of a dry run.

    Parameters
    ----------
    config : Config
        Of the run.
    reports : mapping of str to StepReport
        Of the stages up to `tokens`.
    """
    artifacts = {name: report.artifact for name, report in reports.items()}
    settings = stage_settings("embed", config)
    blocks = [
        _counts(artifacts),
        *_rejects(artifacts),
        _screened(artifacts),
        _lengths(artifacts["tokens"]),
        _estimate(config, settings, artifacts["tokens"]),
        _first_rows(settings.weights, artifacts["tokens"]),
        "No model was loaded. `make curate` with the same settings goes on from here.",
    ]
    return "\n\n".join(block for block in blocks if block)


def _counts(artifacts: Mapping[str, Artifact]) -> str:
    rows, tokens = artifacts["rows"].facts, artifacts["tokens"].facts
    dialects = Counter(rows["dialects"].values())
    by_dialect = ", ".join(f"{count} {name}" for name, count in dialects.items())
    lines = {
        "files": f"{len(rows['files'])} ({by_dialect})",
        "rows": f"{rows['read']} read, {rows['kept']} kept, {rows['rejected']} rejected",
        "tokens": (
            f"{compact(tokens['tokens'])} in {tokens['kept']} rows, {compact(tokens['targets'])} "
            f"trained; {tokens['rejected']} rows rejected, {tokens['truncated']} truncated "
            f"({tokens['truncated_kept_share']:.0%} of their trained tokens kept)"
        ),
    }
    return "\n".join(f"{name:<11}{text}" for name, text in lines.items())


def _rejects(artifacts: Mapping[str, Artifact]) -> list[str]:
    """List each reason with its count and a few places."""
    blocks = []
    for artifact in artifacts.values():
        counts: Counter[str] = Counter()
        examples: dict[str, list[str]] = {}
        for table in artifact.sides("rejects"):
            for row in table.select(["file", "line", "reason", "detail"]).to_pylist():
                counts[row["reason"]] += 1
                shown = examples.setdefault(row["reason"], [])
                if len(shown) < EXAMPLES_PER_REASON:
                    shown.append(f"    {row['file']}:{row['line']} {row['detail'] or ''}".rstrip())
        for reason, count in counts.most_common():
            lines = [f"{artifact.stage}: {reason}, {count} rows, for instance", *examples[reason]]
            blocks.append("\n".join(lines))
    return blocks


def _screened(artifacts: Mapping[str, Artifact]) -> str:
    """Tell duplicates and leaks, each with a few places."""
    rows, screen, tokens = (artifacts[name] for name in ("rows", "screen", "tokens"))
    lines = [f"{'duplicates':<11}{duplicates_text(screen.facts)}"]
    duplicates = screen.side("duplicates.parquet")
    lines += [
        f"    {_place(rows, pair['row_id'])} repeats {_place(rows, pair['kept_as'])}"
        for pair in duplicates.slice(0, EXAMPLES_PER_REASON).to_pylist()
    ]
    if duplicates.num_rows > EXAMPLES_PER_REASON:
        more = duplicates.num_rows - EXAMPLES_PER_REASON
        lines.append(
            f"    and {more} more; `make explain ROW=file:line` tells of one after the run"
        )
    leaks = screen.facts["leaks"]
    if not leaks["benchmarks"]:
        return "\n".join(lines)
    shown = []
    if leaks["mode"] != "drop":  # dropped rows are listed with the other rejects
        table = screen.side("leaks.parquet")
        pool = np.isin(tokens.array("row_id"), table["row_id"].to_numpy()).mean()
        leaks = {**leaks, "shares": {"pool": float(pool)}}
        shown = table.slice(0, EXAMPLES_PER_REASON).to_pylist()
    lines.append(f"{'leaks':<11}{leaks_text(leaks)}")
    lines += [
        f"    {_place(rows, hit['row_id'])} has {leak_text(hit, leaks['ngram'])}" for hit in shown
    ]
    lines += [
        f"    {name}: {facts['leaked_rows']} rows share text with its {facts['items']} items"
        for name, facts in leaks["benchmarks"].items()
    ]
    return "\n".join(lines)


def _place(rows: Artifact, row_id: int) -> str:
    """Say where a row was read."""
    [row] = rows.read(["source_file", "source_line"], start=row_id, stop=row_id + 1).to_pylist()
    return f"{row['source_file']}:{row['source_line']}"


def _lengths(tokens: Artifact) -> str:
    lengths = tokens.array("num_tokens")
    shares = (0, 5, 50, 95, 100)
    values = np.percentile(lengths, shares, method="nearest").astype(int)
    words = ("shortest", "5%", "median", "95%", "longest")
    pairs = ", ".join(f"{word} {value}" for word, value in zip(words, values, strict=True))
    return f"{'lengths':<11}{pairs} tokens"


def _estimate(config: Config, settings: EmbedSettings, tokens: Artifact) -> str:
    total = int(tokens.facts["tokens"])
    workers = max(1, config.compute.workers)
    seconds = forward_seconds(
        num_parameters(settings.weights), total, device=settings.device, workers=workers
    )
    embed = settings.embed
    dim = features_dim(
        embed.features,
        hidden_size=hidden_size(settings.weights),
        sketch_size=embed.sketch_vocab * embed.sketch_hidden,
    )
    store = embedding_bytes(tokens.num_rows, dim) + 8 * total
    return (
        f"{'estimate':<11}embed takes about {clock(math.ceil(seconds))} with {workers} "
        f"{'GPUs' if settings.device == 'cuda' else 'CPU workers'}; the store grows by about "
        f"{store / 1e6:.0f} MB (orders of magnitude, from published peaks)"
    )


def _first_rows(tokenizer_folder: Path, tokens: Artifact) -> str:
    """Show rows as the model reads them, what is trained between double angle quotes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, trust_remote_code=False)
    first = tokens.parts[0]
    table = tokens.read(["row_id", "input_ids", "labels"], start=first.start, stop=first.stop)
    blocks = ["The first rows as the model reads them; what is trained stands between « and »."]
    rows = table.slice(0, ROWS_SHOWN).to_pylist()
    blocks += [f"--- row {row['row_id']}\n{marked(tokenizer, row)}" for row in rows]
    return "\n".join(blocks)


def marked(tokenizer: Any, row: Mapping[str, Any]) -> str:
    """Decode a row with a mark around every run of trained tokens."""
    ids, labels = row["input_ids"], row["labels"]
    pieces: list[str] = []
    start = 0
    for place in range(1, len(ids) + 1):
        trained = labels[start] != IGNORED_LABEL
        if place < len(ids) and (labels[place] != IGNORED_LABEL) == trained:
            continue
        text = tokenizer.decode(ids[start:place])
        pieces.append(f"{OPEN}{text}{CLOSE}" if trained else text)
        start = place
    return "".join(pieces)
