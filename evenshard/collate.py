"""From the weight of a row to the weight of each of its tokens, around any collator.

The loss of a step on W ranks is W * sum(loss_weight * nll) / D on each, where nll is the loss of
a token in nats and D is summed over the ranks and micro-batches of the step. With w the weight of
a row and n its trained tokens, the objectives differ in the two that a batch carries:

    objective   loss_weight of a trained token     the batch's part of D (`loss_denominator`)
    sample      w / n                              real rows, those of weight > 0
    token       w                                  sum of w * n over the rows
    rank        w / (trained tokens of the batch)  1

D of "sample" is a count of rows, never a sum of weights: those would cancel the weight.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenshard.plan import SAME_WEIGHT
from evenshard.shards import IGNORED_LABEL, OBJECTIVES, ShardError

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "collating rows needs torch, which is not installed; get it with `pip install torch`"
    ) from error

Feature = Mapping[str, Any]
Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]

_OWN_COLUMNS = ("row_id", "weight")


@dataclass(frozen=True)
class PadCollator:
    """Pad rows on the right to the longest: the plain collator, for trainers that bring none.

    Parameters
    ----------
    pad_token_id : int
        What fills `input_ids`; labels are filled with -100, the attention mask with 0.
    multiple_of : int, default=1
        The width of a batch is rounded up to a multiple of it.
    """

    pad_token_id: int
    multiple_of: int = 1

    def __call__(self, features: Sequence[Feature]) -> dict[str, Tensor]:
        """Give `input_ids`, `attention_mask` and `labels`, int64 of shape (rows, width)."""
        longest = max(len(feature["input_ids"]) for feature in features)
        width = -(-longest // self.multiple_of) * self.multiple_of
        batch = {
            "input_ids": torch.full((len(features), width), self.pad_token_id),
            "attention_mask": torch.zeros((len(features), width), dtype=torch.int64),
            "labels": torch.full((len(features), width), IGNORED_LABEL),
        }
        for row, feature in enumerate(features):
            length = len(feature["input_ids"])
            batch["input_ids"][row, :length] = torch.as_tensor(feature["input_ids"])
            batch["attention_mask"][row, :length] = 1
            batch["labels"][row, :length] = torch.as_tensor(feature["labels"])
        return batch


@dataclass(frozen=True)
class WeightCollator:
    """Wrap a collator so that its batches say what each token weighs in the loss.

    Parameters
    ----------
    inner : callable
        A collator of `input_ids` and `labels`: one that pads, left or right, or one that
        concatenates the rows (padding-free). It gets neither `weight` nor `row_id`.
    objective : {"sample", "token", "rank"}, default="sample"
        What the weights multiply: the mean loss of each row, the loss of each token, or the mean
        loss of each micro-batch, which then must hold rows of one weight.
    keep_row_ids : bool, default=False
        Whether batches also hold `row_id`, int64 of shape (rows,), -1 for padding.

    Raises
    ------
    ShardError
        If the objective is unknown or the collator is wrapped already. On a call: if the rows
        have no weight, or the inner collator changed or reordered them.
    """

    inner: Collator
    objective: str = "sample"
    keep_row_ids: bool = False

    def __post_init__(self) -> None:
        """Check the objective, and that weights are not taken away twice."""
        if self.objective not in OBJECTIVES:
            raise ShardError(f"objective={self.objective!r} must be one of {', '.join(OBJECTIVES)}")
        if isinstance(self.inner, WeightCollator):
            raise ShardError("inner is a WeightCollator already; give it the collator inside it")

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Collate rows.

        Returns
        -------
        dict
            The inner collator's batch with `loss_weight`, float32 of the shape of `labels`, 0
            where nothing is trained and at the first token of each row, which is never
            predicted, and `loss_denominator`, a float32 scalar.
        """
        rows = [_Row.read(feature) for feature in features]
        token_weights, denominator = self._weigh(rows)
        plain = [
            {name: _listed(value) for name, value in feature.items() if name not in _OWN_COLUMNS}
            for feature in features
        ]
        batch = dict(self.inner(plain))
        places = _find_rows(batch, rows, type(self.inner).__name__)
        # Said everywhere: torch's default may be a half precision, that cannot hold 257 rows.
        loss_weight = torch.zeros(batch["labels"].numel(), dtype=torch.float32)
        loss_weight[places] = torch.cat(token_weights)
        batch["loss_weight"] = loss_weight.reshape(batch["labels"].shape)
        batch["loss_denominator"] = torch.tensor(denominator, dtype=torch.float32)
        if self.keep_row_ids:
            batch["row_id"] = torch.tensor([row.row_id for row in rows])
        return batch

    def _weigh(self, rows: Sequence["_Row"]) -> tuple[list[Tensor], float]:
        """Weigh every token of each row, of shape (tokens,), and give the part of D."""
        real = [row for row in rows if row.weight > 0]
        per_token = {"token": [row.weight for row in rows]}
        if self.objective == "sample":
            per_token["sample"] = [row.weight / max(1, row.num_targets) for row in rows]
            denominator = float(len(real))
        elif self.objective == "token":
            denominator = sum(row.weight * row.num_targets for row in real)
        else:
            _check_one_weight(real)
            num_targets = sum(row.num_targets for row in real)
            per_token["rank"] = [row.weight / max(1, num_targets) for row in rows]
            denominator = float(bool(real))
        weighed = zip(per_token[self.objective], rows, strict=True)
        return [row.is_target.to(torch.float32) * weight for weight, row in weighed], denominator


@dataclass(frozen=True)
class _Row:
    """A row as it came: its tokens, its labels without the first, which is never predicted."""

    row_id: int
    weight: float
    input_ids: Tensor
    labels: Tensor
    is_target: Tensor  # bool of shape (tokens,)
    num_targets: int

    @classmethod
    def read(cls, feature: Feature) -> "_Row":
        missing = [name for name in ("weight", "input_ids", "labels") if name not in feature]
        if missing:
            raise ShardError(
                f"a row has the columns {', '.join(feature)} but no {' and no '.join(missing)}: "
                f"the trainer dropped it or the rows are no shard's; set "
                f"remove_unused_columns=False, and for rows without weights use the collator that "
                f"WeightCollator wraps"
            )
        labels = torch.as_tensor(feature["labels"]).clone()
        labels[:1] = IGNORED_LABEL
        is_target = labels != IGNORED_LABEL
        row = cls(
            int(feature.get("row_id", -1)),
            float(feature["weight"]),
            torch.as_tensor(feature["input_ids"]),
            labels,
            is_target,
            int(is_target.sum()),
        )
        if not 0 <= row.weight < float("inf"):
            raise ShardError(f"row_id={row.row_id} has weight={row.weight}, must be >= 0, finite")
        if row.weight > 0 and not row.num_targets:
            raise ShardError(
                f"row_id={row.row_id} has weight={row.weight:g} but no label after the first is "
                f"trained; truncate rows when they are curated (tokens.max_length), not later"
            )
        return row


def _check_one_weight(real: Sequence[_Row]) -> None:
    for row in real[1:]:
        if abs(row.weight - real[0].weight) > SAME_WEIGHT * real[0].weight:
            raise ShardError(
                f"row_id={row.row_id} has weight={row.weight:g} and row_id={real[0].row_id} of the "
                f'same micro-batch {real[0].weight:g}: the objective "rank" needs rows of one '
                f"cluster; curate with allocate.schedule=pinned, or use the objective "
                f'"sample"'
            )


def _listed(value: Any) -> Any:
    """Give a tensor or array as a list, which every collator takes."""
    return value.tolist() if hasattr(value, "tolist") else value


def _find_rows(batch: Mapping[str, Any], rows: Sequence[_Row], name: str) -> Tensor:
    """Find the flat positions of all tokens of the rows in a batch, of shape (tokens,)."""
    lengths = torch.tensor([len(row.labels) for row in rows])
    labels, input_ids = batch.get("labels"), batch.get("input_ids")
    if isinstance(labels, Tensor) and isinstance(input_ids, Tensor) and labels.dim() == 2:
        height, width = labels.shape
        ends = torch.cumsum(lengths, 0)
        layouts = []
        if height == len(rows) and int(lengths.max()) <= width:
            first = torch.arange(height) * width
            layouts += [first, first + width - lengths]  # padded on the right, on the left
        if height == 1 and int(ends[-1]) <= width:
            layouts.append(ends - lengths)  # one row after the other
        for starts in layouts:
            inside = torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)
            places = starts.repeat_interleave(lengths) + inside
            if _holds(labels.flatten(), input_ids.flatten(), rows, starts, places):
                return places
    shape = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
    raise ShardError(
        f"{name} made labels ({shape}) that do not hold the {len(rows)} rows it got "
        f"(row_id={rows[0].row_id} first, {', '.join(map(str, lengths.tolist()))} tokens) one by "
        f"one: it packs, truncates, masks or reorders; switch that off (packing=False, "
        f"max_length=None), since a token could not keep its row's weight"
    )


def _holds(
    labels: Tensor, input_ids: Tensor, rows: Sequence[_Row], starts: Tensor, places: Tensor
) -> bool:
    """Whether the rows lie at these places, with nothing trained in between."""
    expected = torch.full_like(labels, IGNORED_LABEL)
    expected[places] = torch.cat([row.labels for row in rows]).to(labels.dtype)
    found = labels.clone()
    found[starts] = IGNORED_LABEL
    tokens = torch.cat([row.input_ids for row in rows]).to(input_ids.dtype)
    return torch.equal(found, expected) and torch.equal(input_ids[places], tokens)
