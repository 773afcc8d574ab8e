"""Tiny random models with a real tokenizer and chat template, made on the spot: nothing is downloaded.

folder = save_tiny_model(tmp_path / "base")                  # llama; family="qwen2" or "qwen3" too
config = tiny_config(folder)                                 # a ModelConfig for it, rank 4
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from edge_rl.config import ModelConfig
from edge_rl.weights import gguf as gguf_writer
from edge_rl.weights.loading import quiet

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOKEN_ROWS = ("model.embed_tokens.weight", "lm_head.weight")
_CORPUS = (
    "What is 12 * 34? Solve the problem. You may run Python.",
    "```python\nprint(12 * 34)\n```\n```output\n408\n```\nThe answer is \\boxed{408}.",
    "the quick brown fox jumps over the lazy dog and the answer is the total of all the numbers",
)
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


@functools.cache
def tiny_tokenizer(family: str = "llama") -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of 320 tokens; digits are split as the family does."""
    backend = Tokenizer(models.BPE())
    if family == "llama":
        parts: list[Any] = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    else:
        split = next(key[0] for key, name in gguf_writer.PRE_TOKENIZERS.items() if name == "qwen2")
        parts = [
            pre_tokenizers.Split(Regex(split.removeprefix("Split:")), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    cast(Any, backend).pre_tokenizer = pre_tokenizers.Sequence(parts)
    cast(Any, backend).decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(token, special=True) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _unlikely_rows(family: str, rows: int) -> Iterator[int]:
    """Rows of tokens that are no ASCII text: with zeros there the model hardly ever writes half a character."""
    tokenizer = tiny_tokenizer(family)
    for row in range(rows):
        if row >= len(tokenizer) or not str(tokenizer.decode([row])).isascii():
            yield row


def make_tiny_model(
    family: str = "llama", *, seed: int = 0, rows: int | None = None, tied: bool = True
) -> PreTrainedModel:
    """Return a float32 model of two layers with random weights; `rows` = rows of the embedding."""
    vocab = rows or len(tiny_tokenizer(family))
    settings: dict[str, Any] = _SIZES | {"vocab_size": vocab, "tie_word_embeddings": tied}
    torch.manual_seed(seed)
    if family == "llama":
        model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**settings))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**settings))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**settings, head_dim=16))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # the usual initialisation is so small that all logits are alike
            spread = 0.1 if "norm" in name else 0.4 if name in _TOKEN_ROWS else 0.15
            parameter.copy_(torch.randn_like(parameter) * spread + ("norm" in name))
            if name in _TOKEN_ROWS:
                parameter[list(_unlikely_rows(family, vocab))] = 0.0
    return model.eval()


def save_tiny_model(
    folder: Path, family: str = "llama", *, seed: int = 0, rows: int | None = None, tied: bool = True
) -> Path:
    """Write a tiny model and its tokenizer; return the folder."""
    with quiet():
        cast(Any, make_tiny_model(family, seed=seed, rows=rows, tied=tied)).save_pretrained(folder)
    tiny_tokenizer(family).save_pretrained(str(folder))
    return folder


def tiny_config(folder: Path, *, rank: int = 4) -> ModelConfig:
    """Return the settings that load a tiny model."""
    return ModelConfig(name=str(folder), dtype="float32", rank=rank, alpha=2.0 * rank)


def randomise_adapter(model: Any, *, std: float = 0.05, seed: int = 0) -> None:
    """Give the B matrices of an adapter values, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
