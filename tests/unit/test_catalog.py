import json
from pathlib import Path

import pytest

from edge_rl.catalog import CATALOG, Shape, check_size, resolve_model
from edge_rl.errors import ConfigError

ALIASES = {
    "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "qwen-0.5b", "qwen-1.5b", "qwen-3b", "qwen-coder-0.5b",
    "qwen-coder-1.5b", "qwen3-0.6b", "qwen3-1.7b", "r1-1.5b", "llama-1b", "llama-3b", "gemma3-270m", "gemma3-1b",
    "smollm3-3b",
}  # fmt: skip
TINY = Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=10)


def test_catalog_has_every_alias() -> None:
    assert set(CATALOG) == ALIASES


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_alias_shape_explains_the_published_parameter_count(alias: str) -> None:
    entry = CATALOG[alias]
    assert entry.shape is not None and entry.parameters is not None
    assert entry.shape.matrix_parameters == pytest.approx(entry.parameters, rel=4e-4)


def test_shape_counts_by_hand() -> None:
    # q 8x8, k 8x4, v 8x4, o 8x8 = 192; mlp 3x8x16 = 384; two layers 1152; embedding 10x8 = 80
    assert TINY.matrix_parameters == 2 * (192 + 384) + 80
    # keys and values: 2 x 2 layers x 1 head x 4 x 2 bytes
    assert TINY.kv_bytes_per_token() == 32
    # rank x (in + out): q 16, o 16, k 12, v 12, three of 24 = 128 a layer
    assert TINY.lora_parameters(3) == 2 * 3 * 128


def test_untied_head_counts_the_embedding_twice() -> None:
    untied = Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=10, tied=False)
    assert untied.matrix_parameters - TINY.matrix_parameters == 80


def test_resolve_model_names_the_nearest_alias() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'qwen-1\.5b'"):
        resolve_model("qwen-1.5")


def test_resolve_model_takes_a_hub_id_of_the_catalog_from_the_hub() -> None:
    entry = resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert entry.source == "hub" and entry.parameters == 134_515_008
    assert resolve_model("smollm2-135m").source == "embedded"


def test_resolve_model_refuses_an_unknown_hub_id_by_the_size_in_its_name() -> None:
    with pytest.raises(ConfigError, match=r"7\.0B parameters; at most 3B"):
        resolve_model("owner/Some-7B-Instruct")
    assert resolve_model("owner/Some-7B-Instruct", allow_large=True).parameters == 7_000_000_000
    assert resolve_model("owner/some-360M").parameters == 360_000_000
    assert resolve_model("owner/some-v2").parameters is None


@pytest.mark.parametrize("alias", ["qwen-3b", "llama-3b", "smollm3-3b"])
def test_models_sold_as_3b_are_accepted(alias: str) -> None:
    assert resolve_model(alias).parameters is not None


def test_check_size_refuses_just_above_the_limit() -> None:
    check_size(3_300_000_000, "x", allow_large=False)
    with pytest.raises(ConfigError, match="--allow-large"):
        check_size(3_300_000_001, "x", allow_large=False)


@pytest.mark.parametrize("name", ["../nowhere", "/nowhere/at/all", "a/b/c", "~/nowhere-at-all"])
def test_resolve_model_refuses_a_path_that_does_not_exist(name: str) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        resolve_model(name)


def test_resolve_model_refuses_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve_model(str(tmp_path))


def test_resolve_model_reads_sizes_of_a_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "head_dim": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    entry = resolve_model(str(tmp_path))
    assert entry.shape == TINY and entry.family == "llama" and entry.parameters == TINY.matrix_parameters


def test_resolve_model_counts_stored_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(30))
    assert resolve_model(str(tmp_path)).parameters == 15


def test_resolve_model_refuses_a_large_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4_000_000_000], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigError, match=r"4\.0B parameters"):
        resolve_model(str(tmp_path))


def test_resolve_model_refuses_a_damaged_weight_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(ConfigError, match="no safetensors file"):
        resolve_model(str(tmp_path))
