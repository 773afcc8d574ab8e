import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import PeftModel
from safetensors import torch as safetensors_torch

from edge_rl.errors import CheckpointError
from edge_rl.weights.adapters import (
    adapted_layers,
    attach_adapter,
    base_checksum,
    load_adapter_weights,
    merged_state,
    replace_folder,
    restore_folders,
    save_adapter,
)
from tests.builders_models import make_tiny_model, randomise_adapter, tiny_config

CONFIG = tiny_config(Path("tiny"))
IDS = torch.tensor([[1, 40, 50, 60, 70, 2]])


def _tuned(*, seed: int = 0, base_seed: int = 0) -> PeftModel:
    return attach_adapter(make_tiny_model(seed=base_seed), CONFIG, seed)


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def test_adapter_covers_every_linear_layer_of_the_blocks_and_nothing_else() -> None:
    names = set(adapted_layers(_tuned()))
    kinds = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    kinds += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    assert names == {f"model.layers.{layer}.{kind}" for layer in range(2) for kind in kinds}


def test_adapter_is_float32_and_the_only_thing_that_trains() -> None:
    base = cast(Any, make_tiny_model()).to(torch.bfloat16)
    tuned = attach_adapter(base, CONFIG, 0)
    for name, parameter in tuned.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16), name


def test_fresh_adapter_leaves_the_output_bit_for_bit() -> None:
    assert torch.equal(_logits(_tuned()), _logits(make_tiny_model()))


def test_attach_adapter_is_seeded_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    base = make_tiny_model()
    torch.manual_seed(5)
    first = attach_adapter(base, CONFIG, 7)
    assert torch.equal(torch.rand(3), expected)
    second, third = _tuned(seed=7), _tuned(seed=8)
    matrices = [model.get_parameter(_name_of_a(model)) for model in (first, second, third)]
    assert torch.equal(matrices[0], matrices[1])
    assert not torch.equal(matrices[0], matrices[2])


def _name_of_a(model: PeftModel) -> str:
    return next(name for name, _ in model.named_parameters() if "lora_A" in name)


def test_merged_state_is_the_base_plus_scaled_product() -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    state = merged_state(tuned)
    name = "model.layers.1.mlp.up_proj"
    layer = adapted_layers(tuned)[name]
    expected = layer.base_layer.weight + 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    assert torch.allclose(state[f"{name}.weight"], expected, atol=1e-6)
    assert not torch.equal(state[f"{name}.weight"], layer.base_layer.weight)


def test_merged_state_loads_into_a_plain_model_and_gives_the_adapter_logits() -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    plain = make_tiny_model(seed=3)
    keys: Any = plain.load_state_dict(merged_state(tuned), strict=False)
    assert keys.missing_keys == ["lm_head.weight"] and keys.unexpected_keys == []  # the head is the embedding
    assert torch.allclose(_logits(plain), _logits(tuned), atol=1e-4)


def test_merged_state_never_drifts() -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    before = base_checksum(tuned)
    first = merged_state(tuned)
    again = merged_state(tuned)
    assert all(torch.equal(again[key], first[key]) for key in first)
    assert base_checksum(tuned) == before


def test_merged_state_rounds_once_to_the_asked_dtype() -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    half = merged_state(tuned, dtype=torch.float16)
    assert {tensor.dtype for tensor in half.values()} == {torch.float16}
    full = merged_state(tuned)
    assert all(torch.equal(half[name], full[name].half()) for name in full)


def test_base_checksum_ignores_the_adapter_and_sees_one_changed_weight() -> None:
    base = make_tiny_model()
    plain = base_checksum(base)
    tuned = attach_adapter(base, CONFIG, 0)
    randomise_adapter(tuned)
    assert base_checksum(tuned) == plain
    weight = adapted_layers(tuned)["model.layers.1.self_attn.v_proj"].base_layer.weight
    with torch.no_grad():
        weight[3, 5] += 1e-6
    assert base_checksum(tuned) != plain


def test_base_checksum_sees_two_swapped_rows() -> None:
    model = make_tiny_model()
    before = base_checksum(model)
    weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
    with torch.no_grad():
        weight[[0, 1]] = weight[[1, 0]].clone()
    assert base_checksum(model) != before


def test_base_checksum_of_bfloat16_equals_that_of_its_float32_copy() -> None:
    model = cast(Any, make_tiny_model()).to(torch.bfloat16)
    narrow = base_checksum(model)
    assert base_checksum(model.float()) == narrow
    assert base_checksum(cast(Any, make_tiny_model())) != narrow


def test_saved_adapter_loads_into_a_fresh_model_bit_for_bit(tmp_path: Path) -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    save_adapter(tuned, tmp_path / "adapter")
    other = _tuned(seed=9)
    load_adapter_weights(other, tmp_path / "adapter")
    assert torch.equal(_logits(other), _logits(tuned))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]
    names = sorted(path.name for path in (tmp_path / "adapter").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", "base.json"]


def test_saved_adapter_loads_with_peft_alone(tmp_path: Path) -> None:
    tuned = _tuned()
    randomise_adapter(tuned)
    save_adapter(tuned, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(make_tiny_model(), str(tmp_path / "adapter"))
    assert torch.equal(_logits(loaded), _logits(tuned))


def test_save_adapter_replaces_an_older_one(tmp_path: Path) -> None:
    tuned = _tuned()
    save_adapter(tuned, tmp_path / "adapter")
    (tmp_path / "adapter" / "stale").touch()
    randomise_adapter(tuned)
    save_adapter(tuned, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "stale").exists()
    other = _tuned()
    load_adapter_weights(other, tmp_path / "adapter")
    assert torch.equal(_logits(other), _logits(tuned))
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_save_adapter_names_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write adapter"):
        save_adapter(_tuned(), tmp_path / "file" / "adapter")


def test_load_adapter_weights_refuses_another_base(tmp_path: Path) -> None:
    save_adapter(_tuned(), tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="with checksum"):
        load_adapter_weights(_tuned(base_seed=1), tmp_path / "adapter")


def test_load_adapter_weights_refuses_another_vocabulary(tmp_path: Path) -> None:
    save_adapter(_tuned(), tmp_path / "adapter")
    other = attach_adapter(make_tiny_model(rows=352), CONFIG, 0)
    with pytest.raises(CheckpointError, match="with vocab 320"):
        load_adapter_weights(other, tmp_path / "adapter")


def test_load_adapter_weights_refuses_another_rank(tmp_path: Path) -> None:
    save_adapter(_tuned(), tmp_path / "adapter")
    other = attach_adapter(make_tiny_model(), tiny_config(Path("tiny"), rank=8), 0)
    with pytest.raises(CheckpointError, match="r=4, the model has r=8"):
        load_adapter_weights(other, tmp_path / "adapter")


def test_load_adapter_weights_refuses_another_family(tmp_path: Path) -> None:
    save_adapter(_tuned(), tmp_path / "adapter")
    (tmp_path / "adapter" / "base.json").unlink()
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    state = safetensors_torch.load_file(path)
    state.pop(min(state))
    safetensors_torch.save_file(state, path)
    with pytest.raises(CheckpointError, match="fits 27 of 28 tensors"):
        load_adapter_weights(_tuned(), tmp_path / "adapter")


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_load_adapter_weights_names_a_damaged_file(tmp_path: Path, damage: str) -> None:
    save_adapter(_tuned(), tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot read adapter"):
        load_adapter_weights(_tuned(), tmp_path / "adapter")


def test_saved_adapter_names_its_base_without_a_local_path(tmp_path: Path) -> None:
    model = make_tiny_model()
    model.name_or_path = model.config.name_or_path = "owner/tiny"
    save_adapter(attach_adapter(model, CONFIG, 0), tmp_path / "adapter")
    facts = json.loads((tmp_path / "adapter" / "base.json").read_text())
    assert facts["base"] == "owner/tiny" and facts["vocab"] == 320 and facts["dtype"] == "float32"
    assert (
        json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "owner/tiny"
    )


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_restore_folders_undoes_a_replacement_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """The process dies after so many of the two renames; one of the two contents is in place afterwards."""
    target, source = tmp_path / "best" / "adapter", tmp_path / "best" / "new"
    for folder, text in ((target, "old"), (source, "new")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text, encoding="utf-8")
    done: list[Path] = []
    rename = Path.rename

    def dying_rename(self: Path, to: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(self)
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", dying_rename)

    def keep(path: Path, ignore_errors: bool = False) -> None:
        """The process is dead before it removes anything."""

    monkeypatch.setattr(shutil, "rmtree", keep)
    if renames < 2:
        with pytest.raises(KeyboardInterrupt):
            replace_folder(source, target)
        assert target.exists() == (renames == 0)
    else:
        replace_folder(source, target)
    monkeypatch.undo()
    restore_folders(tmp_path)
    assert (target / "file").read_text(encoding="utf-8") == ("old" if renames < 2 else "new")
    assert {path.name for path in target.parent.iterdir()} <= {"adapter", "new"}


def test_replace_folder_swaps_whole_folders(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    replace_folder(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
