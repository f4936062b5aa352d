"""What the page says of a run that only has figures."""

from typing import Any

from stages.report.gather import Story


def story_of(quality: dict[str, Any]) -> Story:
    """A run of a hundred rows, all kept, of which the quality is given."""
    manifest = {
        "rows": 100,
        "tokens": 1000,
        "rows_per_worker": 50,
        "world_size": 2,
        "asked": "allocate.budget=1.0",
        "got": "100 of 100 rows",
        "weights": {"effective_sample_size": 1.0, "min": 1.0, "max": 1.0},
        "schedule": {"imbalance": 1.0, "kind": "dealt"},
        "rejects": {"rows": 0, "by_reason": {}},
    }
    return Story(
        manifest=manifest,
        facts={"rows": {"read": 100}, "allocate": {"quality": quality}},
        charts={},
        funnel=[],
        clusters=[],
        clusters_in_all=1,
        bins=[],
        workers=[],
        map_share=1.0,
        map_points=0,
        keys={},
        rejects={},
        leaks=[],
        compare=[],
        left_out="",
    )
