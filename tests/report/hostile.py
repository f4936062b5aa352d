"""A small run over a set that attacks whoever shows it, with a row of every fate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import compose
from pipeline.plan import run_plan
from stages.contract.artifact import Artifact

# Each sets this when it runs.
OWNED = "window.__owned=1"
ATTACKS = (
    f"<script>{OWNED}</script>",
    f"</script><script>{OWNED}</script>",
    f"<img src=x onerror='{OWNED}'>",
    f'"><svg onload="{OWNED}">',
    f"<!--<script>{OWNED}</script>-->",
    f'</td></table><iframe srcdoc="<script>parent.{OWNED}</script>"></iframe>',
    f"[click](javascript:{OWNED}) **bold** `code`",
    "{{ 7 * 7 }} {% raw %} {# #} ${7*7}",
    "\u2028\u2029 \u202eright to left\u202c \x1b[31mred",
    "&lt;b&gt; &amp; &#60;i&#62;",
    "http://127.0.0.1:9/picture.png",
    "datum['x'] + signal('y') \\u003cscript\\u003e",
)
FILE = "evil<img src=x onerror=window.__owned=1>.jsonl"
BENCHMARK = "bench<b>&amp;.jsonl"
LEAKED = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
NUM_GOOD = 60


@dataclass(frozen=True)
class Evil:
    """A finished run, and the ids of rows whose fate is known."""

    out: Path
    store: Path
    manifest: Mapping[str, Any]
    artifacts: Mapping[str, Artifact]
    overrides: list[str]
    first: int
    duplicate: int
    untrained: int
    leaked: int
    unreadable_line: int


def write_set(folder: Path) -> Path:
    """Write the set: good rows, a duplicate of the first, a row without an answer, a leak, junk."""
    lines = []
    for i in range(NUM_GOOD):
        attack = ATTACKS[i % len(ATTACKS)]
        row = {
            "instruction": f"question {i} {attack}",
            "output": f"{attack} answer {i * 7}" + " word" * (i % 9),
            "source": attack,
            "id": f"{i}{attack}",
        }
        lines.append(json.dumps(row))
    lines.append(lines[0])
    lines.append(json.dumps({"instruction": f"no answer {ATTACKS[0]}", "output": ""}))
    lines.append(json.dumps({"instruction": f"{LEAKED} {ATTACKS[2]}", "output": "yes"}))
    lines.append("{" + ATTACKS[1])
    path = folder / FILE
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / BENCHMARK).write_text(json.dumps({"question": LEAKED}) + "\n", encoding="utf-8")
    return path


def finished_run(folder: Path, model: Path) -> Evil:
    """Curate the set in this process with a tiny model."""
    path = write_set(folder)
    overrides = [
        "allocate.selector=cluster_balanced",
        f'rows.path="{path}"',
        "name=evil",
        f"store={folder / 'store'}",
        f"out={folder / 'out'}",
        f"model.path={model}",
        "compute=local",
        "rows.rows_per_part=25",
        "rows.max_reject_fraction=0.5",
        "tokens.max_reject_fraction=0.5",
        "tokens.max_length=128",
        "tokens.on_too_long=keep_answer",
        "embed.tokens_per_batch=512",
        f'screen.benchmarks=["{folder / BENCHMARK}"]',
        "allocate.budget=50%",
        "allocate.num_workers=2",
    ]
    report = run_plan(compose(overrides), overrides)
    artifacts = {name: step.artifact for name, step in report.steps.items()}
    return Evil(
        out=report.out,
        store=folder / "store",
        manifest=report.manifest,
        artifacts=artifacts,
        overrides=overrides,
        first=0,
        duplicate=NUM_GOOD,
        untrained=NUM_GOOD + 1,
        leaked=NUM_GOOD + 2,
        unreadable_line=NUM_GOOD + 4,
    )
