"""A seeded sketch of the LM head's gradient that keeps inner products right on average.

The head's gradient of one row is a matrix of shape (vocab, hidden), too large to keep. It is
folded over the vocabulary by a count sketch (each token has one bucket and one sign) and
projected over the hidden size by random signs divided by sqrt(dim). Both maps have
E[M M^T] = I and are independent, so inner products of sketches are unbiased estimates of
those of the gradients (research on count sketches: Charikar et al. 2002; on random signs:
Achlioptas 2003).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sketch:
    """The two random maps.

    Attributes
    ----------
    vocab_map : Tensor of shape (vocab_size, num_buckets), float32
        One entry of +1 or -1 in each row: the bucket and the sign of a token. It is kept dense,
        since a matrix product with it is faster than gathering by bucket.
    hidden_map : Tensor of shape (hidden_size, sketch_hidden), float32
        Random signs divided by sqrt(sketch_hidden).
    """

    vocab_map: Tensor
    hidden_map: Tensor

    @property
    def num_buckets(self) -> int:
        """Size of the folded vocabulary."""
        return int(self.vocab_map.shape[1])

    @property
    def dim(self) -> int:
        """Size of a flattened sketch."""
        return self.num_buckets * int(self.hidden_map.shape[1])


def make_sketch(
    vocab_size: int,
    hidden_size: int,
    *,
    sketch_vocab: int,
    sketch_hidden: int,
    seed: int | list[int],
    device: torch.device,
) -> Sketch:
    """Draw the maps from a seed, the same on every device.

    Buckets are cut from a random permutation of the vocabulary, so that they are of equal size.
    """
    rng = np.random.default_rng(seed)
    num_buckets = min(sketch_vocab, vocab_size)
    bucket_size = -(-vocab_size // num_buckets)
    num_buckets = -(-vocab_size // bucket_size)
    permutation = rng.permutation(vocab_size)
    vocab_map = np.zeros((vocab_size, num_buckets), np.float32)
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), vocab_size)
    vocab_map[permutation, np.arange(vocab_size) // bucket_size] = signs[permutation]
    hidden_map = rng.choice(np.array([-1.0, 1.0], np.float32), (hidden_size, sketch_hidden))
    hidden_map /= np.float32(np.sqrt(sketch_hidden))
    return Sketch(*(torch.from_numpy(array).to(device) for array in (vocab_map, hidden_map)))


def fold_residuals(
    others_CV: Tensor, sums_C: Tensor, pull_C: Tensor, targets_C: Tensor, vocab_map: Tensor
) -> Tensor:
    """Fold the residuals r over the vocabulary.

    Parameters
    ----------
    others_CV : Tensor of shape (chunk, vocab)
        0 at the right token, r times sums elsewhere: exp(logit - largest logit), times the slope
        of the logit where it has one.
    sums_C : Tensor of shape (chunk,)
        Of exp(logit - largest logit) over the whole vocabulary.
    pull_C : Tensor of shape (chunk,)
        -r at the right token: 1 - p_y, times the slope.
    targets_C : Tensor of shape (chunk,), int64
        The right next token of each position.
    vocab_map : Tensor of shape (vocab, num_buckets)
        Buckets and signs; those of several sketches may stand side by side.

    Returns
    -------
    Tensor of shape (chunk, num_buckets)
    """
    folded = (others_CV @ vocab_map).div_(sums_C[:, None])
    return folded.sub_(vocab_map[targets_C] * pull_C[:, None])
