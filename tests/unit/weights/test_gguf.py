import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from safetensors import torch as safetensors_torch
from tokenizers import pre_tokenizers

from edge_rl.errors import ExportError
from edge_rl.weights.gguf import gguf_name, halves_to_interleaved, llama3_rope_factors, pre_tokenizer_name, write_gguf
from tests.builders_models import CHAT_TEMPLATE, make_tiny_model, save_tiny_model, tiny_tokenizer

FACTS = {"base": "owner/tiny", "licence": "Apache-2.0", "adapter_sha256": "abc"}


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = GGUFReader(file)
    tensors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).copy() for tensor in reader.tensors}
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


def test_halves_to_interleaved_by_hand() -> None:
    # one head of four rows: halves (0 1 | 2 3) become pairs (0 2)(1 3)
    assert halves_to_interleaved(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), 1)[:, 0].tolist() == [0, 2, 1, 3]
    assert halves_to_interleaved(torch.arange(8.0), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.12.self_attn.o_proj.weight", "blk.12.attn_output.weight"),
        ("model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"),
        ("model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"),
    ],
)
def test_gguf_names(name: str, expected: str) -> None:
    assert gguf_name(name) == expected


def test_gguf_name_refuses_an_unknown_tensor() -> None:
    with pytest.raises(ExportError, match="no place in a GGUF"):
        gguf_name("model.layers.0.self_attn.sinks")


@pytest.mark.parametrize(("family", "expected"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_pre_tokenizer_is_known_by_its_rule(family: str, expected: str) -> None:
    assert pre_tokenizer_name(tiny_tokenizer(family)) == expected


def test_pre_tokenizer_that_is_unknown_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    copy = type(tokenizer)(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    )
    cast(Any, copy.backend_tokenizer).pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ExportError, match=r"convert_hf_to_gguf\.py"):
        pre_tokenizer_name(copy)


def test_f16_file_holds_the_weights(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    report = write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    _, tensors = _read(tmp_path / "m.gguf")
    model = dict(make_tiny_model().named_parameters())
    assert report.num_tensors == len(tensors) == len(model) == 20
    for name, parameter in model.items():
        expected = parameter.detach()
        if "q_proj" in name or "k_proj" in name:
            expected = halves_to_interleaved(expected, 4 if "q_proj" in name else 2)
        if expected.ndim == 2:
            expected = expected.half().float()
        assert np.array_equal(tensors[gguf_name(name)], expected.numpy()), name


def test_q8_0_file_is_within_half_a_step(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    write_gguf(folder, tmp_path / "m.gguf", "q8_0", provenance=FACTS)
    metadata, tensors = _read(tmp_path / "m.gguf")
    weight = make_tiny_model().get_parameter("model.layers.0.mlp.up_proj.weight").detach().numpy()
    step = np.abs(weight).max() / 127
    error = np.abs(tensors["blk.0.ffn_up.weight"] - weight).max()
    assert 0 < error <= 0.51 * step
    assert metadata["general.file_type"] == 7


def test_metadata_of_the_file(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", rows=352)
    write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    metadata, tensors = _read(tmp_path / "m.gguf")
    expected = {
        "general.architecture": "llama",
        "general.license": "apache-2.0",
        "general.file_type": 1,
        "edge_rl.base": "owner/tiny",
        "edge_rl.adapter_sha256": "abc",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16,
        "llama.vocab_size": 352,
        "llama.context_length": 1024,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    assert {key: metadata.get(key) for key in expected} == expected
    types, tokens = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.tokens"]
    assert types[:3] == [3, 3, 3] and set(types[3:320]) == {1}  # control, then normal
    assert set(types[320:]) == {5} and tokens[351] == "[PAD351]"  # unused rows
    assert tensors["token_embd.weight"].shape == (352, 64)
    assert "output.weight" not in tensors


def test_turn_terminator_is_an_end_token_beside_the_end_of_text(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"eos_token": "<|im_end|>"', '"eos_token": "<|endoftext|>"'))
    write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    metadata, _ = _read(tmp_path / "m.gguf")
    assert (metadata["tokenizer.ggml.eos_token_id"], metadata["tokenizer.ggml.eot_token_id"]) == (0, 2)


def test_untied_head_gets_its_own_tensor(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", tied=False)
    write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    assert "output.weight" in _read(tmp_path / "m.gguf")[1]


def test_tokenizer_with_a_token_too_many_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", rows=300)
    with pytest.raises(ExportError, match="the embedding has 300 rows"):
        write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(("value", "message"), [(7.0e4, "beyond float16"), (float("nan"), "not finite")])
def test_values_that_float16_cannot_hold_are_refused(tmp_path: Path, value: float, message: str) -> None:
    folder = save_tiny_model(tmp_path / "model")
    state = safetensors_torch.load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][0, 0] = value
    safetensors_torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ExportError, match=message):
        write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _edit_config(folder: Path, **changes: Any) -> None:
    import json

    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "format", "message"),
    [
        ({"model_type": "gemma3_text"}, "f16", "family 'gemma3_text' cannot be converted"),
        ({"intermediate_size": 100}, "q8_0", r"multiples of 32, but the model has \{'intermediate_size': 100\}"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "f16", "rope scaling 'yarn'"),
        ({"use_sliding_window": True}, "f16", "sliding window"),
    ],
)
def test_models_that_cannot_be_converted_are_refused(
    tmp_path: Path, changes: dict[str, Any], format: Any, message: str
) -> None:
    folder = save_tiny_model(tmp_path / "model")
    _edit_config(folder, **changes)
    with pytest.raises(ExportError, match=message):
        write_gguf(folder, tmp_path / "m.gguf", format, provenance=FACTS)
    assert not (tmp_path / "m.gguf").exists()


def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    folder = save_tiny_model(tmp_path / "model")
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(ExportError, match=r"No space left.*the adapter is kept"):
        write_gguf(folder, tmp_path / "m.gguf", "f16", provenance=FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_llama3_rope_factors_equal_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(head_dim=64, rope_parameters=settings, max_position_embeddings=131_072)
    scaled, _ = cast(Any, ROPE_INIT_FUNCTIONS["llama3"])(config, device=torch.device("cpu"))
    plain = torch.tensor([500_000.0 ** (-index / 64) for index in range(0, 64, 2)], dtype=torch.float64)
    expected = (plain / scaled.double()).numpy()
    factors = llama3_rope_factors(settings, 64)
    assert factors[0] == 1.0 and factors[-1] == 32.0
    assert np.allclose(factors, expected, rtol=1e-5)


def test_llama3_rope_factor_by_hand() -> None:
    settings = {
        "rope_theta": 1.0, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
        "original_max_position_embeddings": 2 * math.pi * 2.0,
    }  # fmt: skip
    # wavelength 2 pi, ratio 2, smooth = (2 - 1) / 2 = 0.5; 1 / (0.5 / 2 + 0.5) = 4 / 3
    assert llama3_rope_factors(settings, 2).tolist() == pytest.approx([4 / 3])
