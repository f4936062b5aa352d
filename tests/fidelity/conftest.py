"""A tiny model, and one thread: small sums wait longer for a second one than they take."""

import pytest
import torch
from threadpoolctl import threadpool_limits

from stages.embed.model import load_model
from tests.fidelity.passes import HIDDEN
from tests.tiny import tiny_model


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"), tie=False, hidden=HIDDEN)


@pytest.fixture(scope="package")
def target(folder):
    return load_model(folder, dtype="float32", device="cpu", attn_implementation="sdpa")


@pytest.fixture(scope="package")
def whole(folder):
    """The model as its authors wrote it, with gradients."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
