"""One Arrow schema per artifact. Columns are declared here and never inferred from data.

Text is `large_string` in the store, since one column of a large part can pass the 2 GiB that
32-bit offsets reach.
"""

from collections.abc import Mapping

import pyarrow as pa

MESSAGE = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])

ROWS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("source_file", pa.large_string()),
        ("source_line", pa.int64()),
        ("source", pa.large_string()),
        ("uid", pa.large_string()),
        ("messages", pa.list_(MESSAGE)),
        ("meta", pa.large_string()),
        ("multiplicity", pa.int32()),
    ]
)

REJECTS = pa.schema(
    [
        ("file", pa.large_string()),
        ("line", pa.int64()),
        ("byte_offset", pa.int64()),
        ("row_id", pa.int64()),
        ("stage", pa.large_string()),
        ("reason", pa.large_string()),
        ("detail", pa.large_string()),
        ("raw", pa.large_binary()),
    ]
)

SCREEN = pa.schema([("row_id", pa.int64()), ("multiplicity", pa.int32())])

DUPLICATES = pa.schema([("row_id", pa.int64()), ("kept_as", pa.int64())])

NEAR_DUPLICATES = pa.schema(
    [("row_id", pa.int64()), ("near", pa.int64()), ("similarity", pa.float32())]
)

LEAKS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("benchmark", pa.large_string()),
        ("benchmark_line", pa.int64()),
        ("ngram", pa.large_string()),
        ("share", pa.float32()),
    ]
)

TOKENS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("num_tokens", pa.int32()),
        ("num_targets", pa.int32()),
    ]
)

SIGNALS = (
    "embedding_norm",
    "loss",
    "mean_p",
    "max_p",
    "entropy",
    "el2n",
    "grad_norm_bound",
    "head_grad_norm",
)

JUDGE = "judge_sketch"
SKETCH = "head_sketch"
SKETCHES = (SKETCH, JUDGE)

CLUSTER = pa.schema([("row_id", pa.int64()), ("cluster", pa.int32()), ("distance", pa.float32())])

CENTERS = pa.schema(
    [("cluster", pa.int32()), ("num_rows", pa.int64()), ("center", pa.list_(pa.float32()))]
)

ALLOCATE = pa.schema(
    [
        ("row_id", pa.int64()),
        ("worker", pa.int32()),
        ("position", pa.int64()),
        ("weight", pa.float32()),
        ("cluster", pa.int32()),
    ]
)


ALONE_LOSS = "answer_alone_loss"


def embed_schema(dims: Mapping[str, int], *, alone: bool = False) -> pa.Schema:
    """Give the schema of the embed table: raw features, the signals, and a loss more if asked.

    Parameters
    ----------
    dims : mapping of str to int
        Size of each column of features; the first is `embedding`.
    alone : bool
        Whether the loss of the answer without its prompt is there.
    """
    features = [(name, pa.list_(pa.float32(), dim)) for name, dim in dims.items()]
    signals = (*SIGNALS, *((ALONE_LOSS,) if alone else ()))
    return pa.schema(
        [("row_id", pa.int64()), *features, *((name, pa.float32()) for name in signals)]
    )


def feature_column(name: str, feature: str) -> str:
    """Name the column of a feature, where `feature` is the one that `embedding` holds."""
    if name == feature:
        return "embedding"
    return name if name == JUDGE else f"embedding_{name}"
