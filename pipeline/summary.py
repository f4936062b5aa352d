"""The closing words of a run: what each stage did, what was asked and got, and what to do next."""

from pathlib import Path

from pipeline.plan import RunReport
from pipeline.progress import clock, compact
from stages.screen.evidence import duplicates_text, leaks_text
from stages.shards.card import changes_text, quality_text


def summary(report: RunReport) -> str:
    """Write the table of stages, the figures of the set, and a few lines on its use."""
    return "\n".join([_stages(report), "", _figures(report), "", _next(report)])


def _stages(report: RunReport) -> str:
    lines = [f"{'stage':<10}{'key':<18}{'rows':>10}{'rejects':>9}{'time':>9}  how"]
    for name, step in report.steps.items():
        how = "reused" if step.reused else "made"
        if step.parts_reused:
            how += f", {step.parts_reused} parts of an earlier run reused"
        rejected = int(step.artifact.facts.get("rejected", 0))
        lines.append(
            f"{name:<10}{step.artifact.key:<18}{compact(step.artifact.num_rows):>10}"
            f"{rejected:>9}{clock(step.seconds):>9}  {how}"
        )
    return "\n".join(lines)


def _figures(report: RunReport) -> str:
    manifest = report.manifest
    weights, schedule, rejects = manifest["weights"], manifest["schedule"], manifest["rejects"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in rejects["by_reason"].items())
    clusters = ", ".join(f"{c['kept']}/{c['candidates']}" for c in manifest["clusters"][:16])
    more = len(manifest["clusters"]) - 16
    figures = {
        "asked": manifest["asked"],
        "got": manifest["got"],
        "shards": (
            f"{manifest['world_size']} x {manifest['rows_per_worker']} rows, "
            f"{manifest['steps_per_epoch']} whole steps of "
            f"{manifest['rows'] // manifest['steps_per_epoch']} rows an epoch"
        ),
        "clusters": (
            f"{len(manifest['clusters'])} (cluster.num_clusters), kept {clusters}"
            + (f" and {more} more" if more > 0 else "")
        ),
        "weights": (
            f"largest {weights['max']:.3g}, effective sample size "
            f"{weights['effective_sample_size']:.1%}, objective {weights['objective']}"
        ),
        "schedule": (
            f"{schedule['kind']} ({schedule['reason']}), busiest worker "
            f"{schedule['imbalance']:.3f} of the mean"
        ),
        "rejects": f"{rejects['rows']} rows" + (f" ({reasons})" if reasons else ""),
        "copies": duplicates_text(manifest["screen"]),
    }
    if "quality" in manifest:
        figures["quality"] = quality_text(manifest["quality"])
    if "leaks" in manifest["screen"]:
        figures["leaks"] = leaks_text(manifest["screen"]["leaks"])
    if "changes" in manifest:
        figures["changes"] = changes_text(manifest["changes"])
    return "\n".join(f"{name:<10}{text}" for name, text in figures.items())


def _next(report: RunReport) -> str:
    out, name = report.out, report.manifest["name"]
    run = f"NAME={name}" if out == Path("data/curated") / name else f"ARGS=out={out}"
    return "\n".join(
        [
            f"The shards are in {out}. docs/trainers.md has the program that trains on them. Next:",
            f"  make verify {run}                 # check every promise of the folder",
            f"  make reshard {run} WORLD_SIZE=8   # other workers, without the model",
            f"  make explain {run} ROW=0          # the life of one row",
        ]
    )
