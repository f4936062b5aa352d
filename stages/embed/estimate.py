"""How long the pass will take and how much it will write, before it is run."""

from collections.abc import Sequence

from stages.contract.schemas import SIGNALS, SKETCHES

# Floating-point operations a second that a forward pass over short rows reaches on one worker: a
# CPU core, measured with SmolLM2-135M in float32; a GPU, 40% of an H100's published bfloat16 peak.
FLOPS_PER_WORKER = {"cpu": 9e10, "cuda": 4e14}


def forward_seconds(num_params: int, tokens: int, *, device: str, workers: int) -> float:
    """Estimate a forward pass: two operations a parameter and token, on every worker alike."""
    return 2.0 * num_params * tokens / (FLOPS_PER_WORKER[device] * workers)


def features_dim(names: Sequence[str], *, hidden_size: int, sketch_size: int) -> int:
    """Count the numbers of all features of one row."""
    return sum(sketch_size if name in SKETCHES else hidden_size for name in names)


def embedding_bytes(num_rows: int, dim: int) -> int:
    """Estimate the size of the embed table, in bytes: ids, features and signals."""
    return num_rows * (8 + 4 * (dim + len(SIGNALS)))
