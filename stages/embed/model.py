"""A causal language model as two functions: tokens -> last hidden states -> logits."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor

from stages.contract.errors import ConfigurationError

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class TargetModel:
    """The trunk and the head of a loaded model.

    Attributes
    ----------
    trunk : callable
        input_ids of shape (rows, time) -> last hidden states after the final norm, of shape
        (rows, time, hidden).
    head : callable
        (positions, hidden) -> logits of shape (positions, vocab).
    slope : callable or None
        Logits -> how fast each moves with the product of output embedding and hidden state; None
        where it is that product.
    vocab_size, hidden_size : int
        Dimensions of the head.
    device : torch.device
        Where input ids go.
    head_device : torch.device
        Where hidden states must be for the head.
    """

    trunk: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    vocab_size: int
    hidden_size: int
    device: torch.device
    head_device: torch.device
    slope: Callable[[Tensor], Tensor] | None = None


def load_model(
    folder: Path, *, dtype: str, device: str, attn_implementation: str, num_devices: int = 1
) -> TargetModel:
    """Load a model for inference, from safetensors only and without its remote code.

    Parameters
    ----------
    folder : Path
        A folder that `save_pretrained` wrote.
    dtype : str
        bfloat16, float16 or float32.
    device : str
        cpu or cuda.
    attn_implementation : str
        As transformers names them.
    num_devices : int
        GPUs over which one copy is laid by a device map, where more than one.

    Raises
    ------
    ConfigurationError
        If the model's logits are not its output embeddings applied to its last hidden state.
    """
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=DTYPES[dtype],
        attn_implementation=attn_implementation,
        trust_remote_code=False,
        use_safetensors=True,
        device_map="auto" if num_devices > 1 else device,
    )
    model.eval()
    return wrap_model(model)


def wrap_model(model: transformers.PreTrainedModel) -> TargetModel:
    """Split a loaded model into trunk and head, and check that they make up the whole."""
    output = model.get_output_embeddings()
    trunk_module = model.base_model
    adjust, slope = _logit_adjustment(model.config)

    def trunk(input_ids: Tensor) -> Tensor:
        # Rows are padded on the right and attention is causal, so no real token sees padding
        # and no mask is needed; this keeps attention on its fastest path.
        hidden: Tensor = trunk_module(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = output(hidden)
        return adjust(logits) if adjust else logits

    target = TargetModel(
        trunk=trunk,
        head=head,
        vocab_size=int(output.weight.shape[0]),
        hidden_size=int(output.weight.shape[1]),
        device=model.get_input_embeddings().weight.device,
        head_device=output.weight.device,
        slope=slope,
    )
    _check_split(model, target)
    return target


def _logit_adjustment(
    config: transformers.PreTrainedConfig,
) -> tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor], Tensor] | None]:
    """Do to logits what some families do after the head: scale them, or cap them softly.

    Returns
    -------
    adjust : callable or None
        Products of output embedding and hidden state -> logits; None where they are the same.
    slope : callable or None
        Logits -> the derivative of each by its product, which the head's gradient has as a factor.
    """
    cap = getattr(config, "final_logit_softcapping", None)
    scale = (getattr(config, "logit_scale", None) or 1.0) / (
        getattr(config, "logits_scaling", None) or 1.0
    )
    if not cap and scale == 1.0:
        return None, None

    def adjust(logits: Tensor) -> Tensor:
        logits = logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    def slope(logits: Tensor) -> Tensor:
        return scale * (1.0 - (logits / cap).square()) if cap else torch.full_like(logits, scale)

    return adjust, slope


def _check_split(model: transformers.PreTrainedModel, target: TargetModel) -> None:
    """Compare trunk and head with the whole model on eight tokens, before any row is spent."""
    input_ids = torch.arange(8, device=target.device)[None, :] % target.vocab_size
    with torch.inference_mode():
        whole = model(input_ids=input_ids, use_cache=False).logits[0].float()
        hidden = target.trunk(input_ids)[0].to(target.head_device)
        split = target.head(hidden).float()
    scale = float(whole.abs().max()) + 1e-6
    error = float((whole.to(split.device) - split).abs().max()) / scale
    if not error < 1e-2:
        raise ConfigurationError(
            f"model.path: the logits of {type(model).__name__} are not its output embeddings "
            f"applied to its last hidden state (they differ by {error:.1%} of the largest); "
            f"this family is not supported, choose another model"
        )
