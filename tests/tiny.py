"""A tokenizer and a model that are made in a second, so that no test needs the network.

Both are the same bytes every time: the text is fixed, and the weights come from a seed.
"""

from pathlib import Path

BOS = "<|im_start|>"
EOS = "<|im_end|>"
PAD = "<|pad|>"
VOCAB = 512

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SENTENCES = (
    "Below is an instruction that describes a task. Write a response that completes it.",
    "You are a helpful assistant. Answer the question of the user in one short sentence.",
    "system user assistant instruction response question answer",
    "What is the capital of France? The capital of France is Paris.",
    "Name a prime below 10. Seven is a prime number, and so are two, three and five.",
    "Write a function that adds two numbers.\n\ndef add(a, b):\n    return a + b\n",
    "The weather in Oslo is cold today, but tomorrow it will be warmer than here.",
    "Count upwards: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25",
    "Explain how the model learns from the data, and why the loss goes down over time.",
    "Der Hund schläft. Où est la gare? 你好,世界。 Привет, мир! 🙂",
)


def tiny_tokenizer(folder: Path) -> Path:
    """Train a byte-level BPE tokenizer of 512 tokens with a ChatML template, and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    tokenizer.chat_template = CHATML
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    tie: bool = True,
    num_layers: int = 2,
    hidden: int = 32,
    vocab: int = 0,
) -> Path:
    """Save a random Llama in float32 with the tiny tokenizer in one folder.

    Parameters
    ----------
    folder : Path
        Where it goes; made if missing.
    seed : int, default=0
        Decides the weights. The global random state is left as it was.
    tie : bool, default=True
        Whether the LM head is the embedding matrix.
    num_layers, hidden : int
        Its size; `hidden` must be a multiple of 8.
    vocab : int, default=0
        Rows of the embedding matrix; 0 takes as many as the tokenizer has tokens.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(folder))
    config = LlamaConfig(
        vocab_size=vocab or len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=tie,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder)
    return folder
