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
    order : Tensor of shape (num_buckets * bucket_size,), int64
        Token ids sorted by bucket; buckets have equal sizes, the last ids repeat token 0.
    signs : Tensor of the same shape, float32
        +1 or -1 of each token in `order`; 0 where the place only fills a bucket.
    bucket_of, sign_of : Tensor of shape (vocab_size,)
        Bucket (int64) and sign (float32) of each token.
    hidden_map : Tensor of shape (hidden_size, sketch_hidden), float32
        Random signs divided by sqrt(sketch_hidden).
    """

    order: Tensor
    signs: Tensor
    bucket_of: Tensor
    sign_of: Tensor
    hidden_map: Tensor

    @property
    def num_buckets(self) -> int:
        """Size of the folded vocabulary."""
        return int(self.bucket_of.max()) + 1

    @property
    def dim(self) -> int:
        """Size of a flattened sketch."""
        return self.num_buckets * self.hidden_map.shape[1]


def make_sketch(
    vocab_size: int,
    hidden_size: int,
    *,
    sketch_vocab: int,
    sketch_hidden: int,
    seed: int,
    device: torch.device,
) -> Sketch:
    """Draw the maps from a seed, the same on every device.

    Buckets are cut from a random permutation of the vocabulary, so that they are of equal size
    and the fold is a reshape and a sum.
    """
    rng = np.random.default_rng(seed)
    num_buckets = min(sketch_vocab, vocab_size)
    bucket_size = -(-vocab_size // num_buckets)
    num_buckets = -(-vocab_size // bucket_size)
    permutation = rng.permutation(vocab_size)
    sign_of = rng.choice(np.array([-1.0, 1.0], np.float32), vocab_size)
    filled = np.zeros(num_buckets * bucket_size, np.int64)
    filled[:vocab_size] = permutation
    signs = np.zeros(filled.size, np.float32)
    signs[:vocab_size] = sign_of[permutation]
    bucket_of = np.empty(vocab_size, np.int64)
    bucket_of[permutation] = np.arange(vocab_size) // bucket_size
    hidden_map = rng.choice(np.array([-1.0, 1.0], np.float32), (hidden_size, sketch_hidden))
    hidden_map /= np.float32(np.sqrt(sketch_hidden))
    tensors = (filled, signs, bucket_of, sign_of, hidden_map)
    return Sketch(*(torch.from_numpy(array).to(device) for array in tensors))


def fold_residuals(
    others_CV: Tensor, sums_C: Tensor, wrong_p_C: Tensor, targets_C: Tensor, sketch: Sketch
) -> Tensor:
    """Fold p - e_y over the vocabulary.

    Parameters
    ----------
    others_CV : Tensor of shape (chunk, vocab)
        exp(logit - largest logit), 0 at the right token.
    sums_C : Tensor of shape (chunk,)
        Sums over the whole vocabulary, so that p = others / sums away from the right token.
    wrong_p_C : Tensor of shape (chunk,)
        1 - p_y.
    targets_C : Tensor of shape (chunk,), int64
        The right next token of each position.
    sketch : Sketch
        The maps.

    Returns
    -------
    Tensor of shape (chunk, num_buckets)
    """
    chunk = others_CV.shape[0]
    signed = others_CV.index_select(1, sketch.order).mul_(sketch.signs)
    folded = signed.view(chunk, sketch.num_buckets, -1).sum(-1).div_(sums_C[:, None])
    rows = torch.arange(chunk, device=folded.device)
    folded[rows, sketch.bucket_of[targets_C]] -= sketch.sign_of[targets_C] * wrong_p_C
    return folded
