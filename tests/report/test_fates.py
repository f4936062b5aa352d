import numpy as np

from stages.report.fates import FATES, Passed, fates_of, funnel


def test_every_row_has_one_fate() -> None:
    passed = Passed(
        num_rows=8,
        screen=np.array([0, 1, 2, 3, 7]),
        embed=np.array([0, 1, 2]),
        selected=np.array([1]),
        duplicates=np.array([4, 5, 7]),  # 7 was listed and kept all the same
        near=np.array([5]),
    )
    assert [FATES[code] for code in fates_of(passed)] == [
        "not selected",
        "kept",
        "not selected",
        "rejected",  # passed the screen, was not embedded
        "duplicate",
        "near duplicate",
        "rejected",  # did not pass the screen, and nothing stands for it
        "rejected",
    ]


def test_losses_and_the_last_count_add_up_to_what_was_read() -> None:
    facts = {
        "rows": {
            "read": 100,
            "rejected": 4,
            "kept": 90,
            "limit": 90,
            "rejects_by_reason": {"not_json": 4},
        },
        "screen": {
            "kept": 80,
            "rejected": 2,
            "rejects_by_reason": {"benchmark_leak": 2},
            "duplicates": {"rows": 5},
            "near_duplicates": {"rows": 3, "mode": "collapse"},
        },
        "tokens": {"kept": 79, "rejected": 1, "rejects_by_reason": {"empty": 1}},
        "embed": {"kept": 79, "rejected": 0},
    }
    steps = funnel(facts, 40)
    assert [(s["step"], s["rows"], s["lost"], s["why"]) for s in steps] == [
        ("rows read", 100, 0, ""),
        ("readable", 96, 4, "4 not_json"),
        ("sampled", 90, 6, "rows.limit=90"),
        ("not leaked", 88, 2, "2 benchmark_leak"),
        ("distinct", 80, 8, "5 equal to an earlier row, 3 near to one"),
        ("trainable", 79, 1, "1 empty"),
        ("embedded", 79, 0, ""),
        ("kept", 40, 39, "not selected"),
    ]
    assert sum(s["lost"] for s in steps) + steps[-1]["rows"] == 100
