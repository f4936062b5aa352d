"""A token weighs what the objective says, wherever the inner collator put it."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from evenshard.collate import PadCollator, WeightCollator  # noqa: E402
from evenshard.shards import ShardError  # noqa: E402

PAD = 7
# Two rows and one of padding: weights 0.5, 3 and 0; 2, 1 and 0 trained tokens.
FEATURES = [
    {"row_id": 40, "weight": 0.5, "input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, 4]},
    {"row_id": 41, "weight": 3.0, "input_ids": [5, 6], "labels": [5, 6]},
    {"row_id": -1, "weight": 0.0, "input_ids": [0], "labels": [-100]},
]


def pad_left(features: list[dict[str, Any]]) -> dict[str, Any]:
    width = max(len(feature["input_ids"]) for feature in features)
    return {
        name: torch.tensor([[fill] * (width - len(f[name])) + f[name] for f in features])
        for name, fill in (("input_ids", PAD), ("labels", -100))
    }


def flatten(features: list[dict[str, Any]]) -> dict[str, Any]:
    """As the padding-free collators do it: the first label of a row is ignored."""
    return {
        "input_ids": torch.tensor([[i for f in features for i in f["input_ids"]]]),
        "labels": torch.tensor([[i for f in features for i in (-100, *f["labels"][1:])]]),
    }


def test_pads_on_the_right() -> None:
    batch = PadCollator(PAD, multiple_of=3)(FEATURES)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 7, 7], [5, 6] + [7] * 4, [0] + [7] * 5]
    assert batch["attention_mask"].sum(1).tolist() == [4, 2, 1]
    assert batch["labels"].tolist()[:2] == [[-100, 2, -100, 4, -100, -100], [5, 6] + [-100] * 4]


RIGHT = [[0, 1, 0, 1], [0, 2, 0, 0], [0, 0, 0, 0]]
LEFT = [[0, 1, 0, 1], [0, 0, 0, 2], [0, 0, 0, 0]]
FLAT = [[0, 1, 0, 1, 0, 2, 0]]


@pytest.mark.parametrize(
    ("inner", "place"),
    [(PadCollator(PAD), RIGHT), (pad_left, LEFT), (flatten, FLAT)],
    ids=["right", "left", "flat"],
)
@pytest.mark.parametrize(
    ("objective", "values", "denominator"),
    # w / n; w; and w / n once more for one row of weight
    [("sample", (0.25, 3.0), 2.0), ("token", (0.5, 3.0), 0.5 * 2 + 3.0 * 1)],
)
def test_by_hand(
    inner: Any, place: list[list[int]], objective: str, values: Any, denominator: float
) -> None:
    batch = WeightCollator(inner, objective, keep_row_ids=True)(FEATURES)
    expected = [[(0.0, *values)[where] for where in line] for line in place]
    assert batch["loss_weight"].tolist() == expected
    assert batch["loss_weight"].dtype == torch.float32
    assert batch["loss_denominator"].item() == denominator
    assert batch["row_id"].tolist() == [40, 41, -1]


def test_rank_weighs_the_mean_of_the_micro_batch() -> None:
    features = [{**feature, "weight": 1.5 if feature["weight"] else 0.0} for feature in FEATURES]
    batch = WeightCollator(PadCollator(PAD), "rank")(features)
    assert batch["loss_weight"].tolist() == [[0, 0.5, 0, 0.5], [0, 0.5, 0, 0], [0, 0, 0, 0]]
    assert batch["loss_denominator"].item() == 1
    assert "row_id" not in batch
    with pytest.raises(ShardError, match=r'row_id=41 has weight=3 .*schedule=pinned.*"sample"'):
        WeightCollator(PadCollator(PAD), "rank")(FEATURES)


def test_tensors_and_one_row_are_as_good() -> None:
    feature = {name: torch.tensor(value) for name, value in FEATURES[0].items()}
    for inner in (PadCollator(PAD), pad_left, flatten):
        batch = WeightCollator(inner)([feature])
        assert batch["loss_weight"].tolist() == [[0, 0.25, 0, 0.25]]


def test_rows_that_look_like_padding_are_told_apart_by_labels() -> None:
    row = {"row_id": 1, "weight": 1.0, "input_ids": [PAD, PAD], "labels": [-100, PAD]}
    for inner, place in ((PadCollator(PAD), [0, 1, 0, 0]), (pad_left, [0, 0, 0, 1])):
        batch = WeightCollator(inner, "token")([row, FEATURES[0]])
        assert batch["loss_weight"][0].tolist() == place


def test_stock_collators() -> None:
    transformers = pytest.importorskip("transformers")
    inner = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = WeightCollator(inner)(FEATURES)
    assert batch["loss_weight"].tolist() == [[0, 0.25, 0, 0.25, 0, 3.0, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 4, 6, 7]


def truncate(features: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value[:, :3] for name, value in PadCollator(PAD)(features).items()}


def reverse(features: list[dict[str, Any]]) -> dict[str, Any]:
    return PadCollator(PAD)(features[::-1])


def mask(features: list[dict[str, Any]]) -> dict[str, Any]:
    batch = PadCollator(PAD)(features)
    batch["labels"][0, 1] = -100
    return batch


def pack_in_two(features: list[dict[str, Any]]) -> dict[str, Any]:
    batch = flatten(features)
    return {name: torch.cat([value, value]) for name, value in batch.items()}


@pytest.mark.parametrize("inner", [truncate, reverse, mask, pack_in_two, lambda rows: {}])
def test_a_collator_that_changes_rows_is_refused(inner: Callable[..., Any]) -> None:
    with pytest.raises(ShardError, match=r"row_id=40 first, 4, 2, 1 tokens.*packing=False"):
        WeightCollator(inner)(FEATURES)


def test_what_is_missing_is_named() -> None:
    collator = WeightCollator(PadCollator(PAD))
    bare = {name: FEATURES[0][name] for name in ("input_ids", "labels")}
    with pytest.raises(ShardError, match=r"no weight.*remove_unused_columns=False"):
        collator([bare])
    with pytest.raises(ShardError, match=r"row_id=40 has weight=-1.0, must be >= 0"):
        collator([{**FEATURES[0], "weight": -1.0}])
    with pytest.raises(ShardError, match=r"row_id=40.*tokens.max_length"):
        collator([{**FEATURES[0], "labels": [1, -100, -100, -100]}])
    with pytest.raises(ShardError, match="objective='mean' must be one of sample, token, rank"):
        WeightCollator(PadCollator(PAD), "mean")
    with pytest.raises(ShardError, match="inner is a WeightCollator already"):
        WeightCollator(collator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("objective", ["sample", "token", "rank"])
def test_numbers_do_not_follow_the_default_type(objective: str, dtype: Any) -> None:
    """In bfloat16, 257 rows are 256 and a weight has 3 digits."""
    rows = [{**FEATURES[0], "row_id": number, "weight": 1.001} for number in range(257)]
    expected = WeightCollator(PadCollator(PAD), objective)(rows)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = WeightCollator(PadCollator(PAD), objective)(rows)
    finally:
        torch.set_default_dtype(before)
    for name in ("loss_weight", "loss_denominator"):
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], expected[name])


def test_the_objective_of_a_collator_can_be_read() -> None:
    """Loaders and `check_start` compare it with the plan's."""
    assert WeightCollator(PadCollator(PAD)).objective == "sample"
    assert WeightCollator(PadCollator(PAD), "token").objective == "token"
