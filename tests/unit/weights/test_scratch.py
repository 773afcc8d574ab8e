"""The copy that generates: base + adapter, rebuilt without drift."""

from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors import torch as safetensors_torch

from edge_rl.errors import CheckpointError
from edge_rl.weights import adapters
from edge_rl.weights import packed as packed_linears
from edge_rl.weights.scratch import copy_of
from tests.builders_models import make_tiny_model, randomise_adapter
from tests.builders_policies import Policy, make_policy, plain_logprobs

TOKENS = (5, 6, 7, 11, 12, 200, 13)
LAYER = "model.layers.0.mlp.up_proj"
OTHER_LAYER = "model.layers.0.mlp.down_proj"


def _policy(folder: Path, *, packed: bool = True) -> Policy:
    """A policy whose scratch copy is read with a usual attention; the engine's expects the engine's masks."""
    policy = make_policy(folder, packed=packed, std=0.1)
    policy.scratch.model.set_attn_implementation("sdpa")
    return policy


def _difference(policy: Policy) -> float:
    """Largest difference of log-probabilities between the scratch copy and the adapted model."""
    ours = plain_logprobs(policy.scratch.model, TOKENS, 1)
    theirs = plain_logprobs(policy.model, TOKENS, 1)
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("packed", [True, False])
def test_load_makes_the_copy_equal_to_base_plus_adapter(tmp_path: Path, packed: bool) -> None:
    policy = _policy(tmp_path, packed=packed)
    assert _difference(policy) > 0.01
    policy.scratch.load(policy.save())
    assert _difference(policy) < 1e-5


def test_load_none_gives_the_base(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    before = plain_logprobs(policy.scratch.model, TOKENS, 1)
    policy.scratch.load(policy.save())
    policy.scratch.load(None)
    with policy.model.disable_adapter():
        assert _difference(policy) < 1e-5
    assert torch.equal(plain_logprobs(policy.scratch.model, TOKENS, 1), before)


def test_unload_gives_the_copy_back_until_the_next_load(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    folder = policy.save()
    policy.scratch.load(folder)
    before = plain_logprobs(policy.scratch.model, TOKENS, 1)
    policy.scratch.unload()
    with pytest.raises(AssertionError, match="repack"):
        plain_logprobs(policy.scratch.model, TOKENS, 1)
    policy.scratch.load(folder)
    assert torch.equal(plain_logprobs(policy.scratch.model, TOKENS, 1), before)


def test_unload_leaves_a_copy_of_plain_matrices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(linear: torch.nn.Linear) -> bool:
        return False

    monkeypatch.setattr(packed_linears, "can_pack", never)  # as on a GPU
    policy = _policy(tmp_path, packed=False)
    policy.scratch.load(policy.save())
    before = plain_logprobs(policy.scratch.model, TOKENS, 1)
    policy.scratch.unload()
    assert torch.equal(plain_logprobs(policy.scratch.model, TOKENS, 1), before)


def test_many_loads_do_not_drift(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    first = policy.save("first")
    policy.scratch.load(first)
    expected = plain_logprobs(policy.scratch.model, TOKENS, 1)
    randomise_adapter(policy.model, std=0.3, seed=7)
    second = policy.save("second")
    for _ in range(5):
        policy.scratch.load(second)
        policy.scratch.load(first)
    assert torch.equal(plain_logprobs(policy.scratch.model, TOKENS, 1), expected)


def test_the_base_of_the_trained_model_is_never_written(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    policy.scratch.load(policy.save())
    after = policy.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    shared = {value.data_ptr() for value in after.values()} & {
        parameter.data_ptr() for parameter in policy.scratch.model.parameters() if parameter.numel()
    }
    assert not shared


def test_an_adapter_that_lacks_a_matrix_is_refused(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    folder = policy.save()
    path = folder / "adapter_model.safetensors"
    state = safetensors_torch.load_file(path)
    missing = next(name for name in state if "layers.1" in name and "lora_B" in name)
    safetensors_torch.save_file({name: value for name, value in state.items() if name != missing}, path)
    with pytest.raises(CheckpointError, match=r"has no tensor .*it was trained on another base"):
        policy.scratch.load(folder)


def test_copy_of_a_base_in_4_bit_holds_plain_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for bitsandbytes: codes with a scale beside them."""

    class Codec:
        @staticmethod
        def dequantize_4bit(codes: torch.Tensor, scale: float) -> torch.Tensor:
            return codes.float() * scale

    def require(name: str, extra: str) -> type[Codec]:
        return Codec

    monkeypatch.setattr(adapters, "require", require)
    base = make_tiny_model()
    expected = copy_of(base).get_submodule(OTHER_LAYER)
    linear = cast(torch.nn.Linear, base.get_submodule(LAYER))
    shape = (linear.out_features, linear.in_features)
    codes = torch.nn.Parameter(torch.randint(0, 16, shape, dtype=torch.uint8), requires_grad=False)
    codes.quant_state = 0.5  # pyright: ignore[reportAttributeAccessIssue]
    linear.weight = codes
    twin = copy_of(base)
    plain, other = (cast(torch.nn.Linear, twin.get_submodule(name)) for name in (LAYER, OTHER_LAYER))
    assert torch.equal(plain.weight, codes.float() * 0.5)
    assert torch.equal(other.weight, cast(torch.nn.Linear, expected).weight)
    assert linear.weight is codes
    assert torch.isfinite(twin(torch.tensor([TOKENS])).logits).all()
