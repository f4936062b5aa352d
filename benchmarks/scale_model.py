"""What a run costs at a scale that was not measured: arithmetic from figures that were.

Floating-point operations of a forward pass are two a parameter and token; the head and the
features add the measured ratio. A GPU reaches a share of its published peak, which is an
assumption here and said to be one.
"""

from dataclasses import dataclass

from stages.contract.schemas import SIGNALS

# H100 SXM5, bfloat16 without sparsity: NVIDIA's data sheet.
PEAK_FLOPS = 989.4e12
MEMORY_BYTES = 80e9
# Assumed, not measured: the share of the peak that a forward pass over padded rows reaches.
UTILISATION = 0.4
JUDGE_DIM = 2048


@dataclass(frozen=True)
class Job:
    """A run on a cluster.

    Attributes
    ----------
    rows, tokens_per_row : float
        What is measured.
    params, hidden : float
        Of the model.
    gpus : int
        H100-class GPUs.
    overhead : float
        Time of the pass over that of the bare forward, as measured.
    """

    rows: float
    tokens_per_row: float
    params: float
    hidden: int
    gpus: int
    overhead: float

    @property
    def tokens(self) -> float:
        """Tokens of all rows."""
        return self.rows * self.tokens_per_row

    @property
    def gpus_per_copy(self) -> int:
        """GPUs that a copy of the weights in bfloat16 takes, a tenth of each left for the batch."""
        copy = 1
        while 2.0 * self.params > 0.9 * MEMORY_BYTES * copy:
            copy *= 2
        return copy

    @property
    def hours(self) -> float:
        """Hours of the pass, if all GPUs work all the time."""
        flops = 2.0 * self.params * self.tokens * self.overhead
        return flops / (self.gpus * PEAK_FLOPS * UTILISATION) / 3600

    @property
    def hours_in_turn(self) -> float:
        """The same as the code stands: layers of one copy lie on GPUs that work one at a time."""
        return self.hours * self.gpus_per_copy

    @property
    def embed_bytes(self) -> float:
        """Bytes of the embed table: id, target_row, judge sketch, signals."""
        return self.rows * (8 + 4 * (self.hidden + JUDGE_DIM + len(SIGNALS)))

    @property
    def token_bytes(self) -> float:
        """Bytes of ids and labels before compression."""
        return 8 * self.tokens


def llama_7b(gpus: int, *, tokens_per_row: float, overhead: float) -> Job:
    """1M rows through a model of the size of Llama 2 7B."""
    return Job(1e6, tokens_per_row, 6.74e9, 4096, gpus, overhead)


def llama_70b(gpus: int, *, tokens_per_row: float, overhead: float) -> Job:
    """50M rows through a model of the size of Llama 3 70B."""
    return Job(50e6, tokens_per_row, 70.6e9, 8192, gpus, overhead)
