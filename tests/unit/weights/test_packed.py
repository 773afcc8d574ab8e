"""Packed linear layers multiply as plain ones do, forth and back."""

import pytest
import torch
from torch import nn

from edge_rl.weights.packed import PackedLinear, can_pack, pack_linears

needs_packing = pytest.mark.skipif(
    not can_pack(nn.Linear(4, 4, bias=False)), reason="this build of torch has no packed float32 matrices for its CPU"
)


def _linear(inputs: int = 24, outputs: int = 40, *, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=False)


def test_can_pack_only_plain_float32_layers_without_bias() -> None:
    assert not can_pack(nn.Linear(4, 4))
    assert not can_pack(nn.Linear(4, 4, bias=False, dtype=torch.bfloat16))
    assert not can_pack(nn.Linear(4, 4, bias=False, device="meta"))


@needs_packing
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (130, 24), (2, 5, 24)])
def test_packed_layer_equals_the_plain_one(shape: tuple[int, ...]) -> None:
    linear = _linear()
    packed = PackedLinear(linear, keep_weight=True)
    inputs = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(packed(inputs), linear(inputs).detach(), atol=1e-6, rtol=1e-6)


@needs_packing
def test_gradient_for_the_inputs_equals_that_of_the_plain_layer() -> None:
    linear = _linear()
    packed = PackedLinear(linear, keep_weight=True)
    inputs = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
    upstream = torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(2))
    gradients: list[torch.Tensor] = []
    for layer in (linear, packed):
        given = inputs.clone().requires_grad_()
        layer(given).backward(upstream)
        assert given.grad is not None
        gradients.append(given.grad)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-6)
    assert not packed.weight.requires_grad and packed.weight.grad is None


@needs_packing
def test_gradient_survives_an_upstream_that_is_not_contiguous() -> None:
    linear = _linear(24, 40)
    packed = PackedLinear(linear, keep_weight=True)
    given = torch.randn(3, 24, requires_grad=True)
    upstream = torch.randn(40, 3).t()
    packed(given).backward(upstream)
    assert given.grad is not None
    torch.testing.assert_close(given.grad, (upstream @ linear.weight).detach(), atol=1e-6, rtol=1e-6)


@needs_packing
def test_repack_multiplies_with_the_new_matrix_forth_and_back() -> None:
    packed = PackedLinear(_linear(), keep_weight=True)
    other = _linear(seed=5)
    packed.repack(other.weight)
    given = torch.randn(3, 24, requires_grad=True)
    torch.testing.assert_close(packed(given).detach(), other(given).detach(), atol=1e-6, rtol=1e-6)
    packed(given).sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(given.grad, other.weight.detach().sum(0).expand(3, -1), atol=1e-6, rtol=1e-6)


@needs_packing
def test_without_the_plain_weight_a_layer_is_for_inference() -> None:
    linear = _linear()
    packed = PackedLinear(linear, keep_weight=False)
    assert packed.weight.numel() == 0
    inputs = torch.randn(3, 24)
    torch.testing.assert_close(packed(inputs), linear(inputs).detach(), atol=1e-6, rtol=1e-6)
    with pytest.raises(AssertionError, match="for inference"):
        packed(inputs.requires_grad_())


@needs_packing
def test_the_plain_weight_stays_readable() -> None:
    linear = _linear()
    packed = PackedLinear(linear, keep_weight=True)
    assert torch.equal(packed.weight, linear.weight)
    assert packed.state_dict().keys() == {"weight"}


@needs_packing
def test_pack_linears_replaces_the_wanted_layers_in_their_places() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ModuleDict({"inner": nn.Linear(8, 8, bias=False)}))
    model.append(nn.Linear(8, 8))
    packed = pack_linears(model, keep_weight=True, is_wanted=lambda name: name != "0")
    assert list(packed) == ["1.inner"]
    assert model.get_submodule("1.inner") is packed["1.inner"]
    assert type(model[0]) is nn.Linear and type(model[2]) is nn.Linear


def test_pack_linears_leaves_other_precisions_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False, dtype=torch.bfloat16))
    assert pack_linears(model, keep_weight=False) == {}
    assert type(model[0]) is nn.Linear
