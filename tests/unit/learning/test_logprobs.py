"""The head in chunks, against log_softmax over all logits at once."""

import math

import pytest
import torch
from torch import Tensor

from edge_rl.learning import logprobs
from edge_rl.learning.logprobs import head_logprobs

# Shapes: N tokens, H hidden size, V vocabulary.
N, H, V = 11, 7, 53


def _given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(N, H, generator=generator).to(dtype)
    weight_VH = torch.randn(V, H, generator=generator).to(dtype)
    return hidden_NH.requires_grad_(), weight_VH, torch.randint(V, (N,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 4, 11, 256])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_head_logprobs_equal_log_softmax_with_gradient(
    chunk: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    hidden_NH, weight_VH, target_N = _given()
    upstream_N = torch.randn(N, generator=torch.Generator().manual_seed(1))
    found_N, entropy_N = head_logprobs(hidden_NH, weight_VH, target_N, temperature=temperature)
    found_N.backward(upstream_N)

    plain_NH = hidden_NH.detach().clone().double().requires_grad_()
    all_NV = ((plain_NH @ weight_VH.double().T) / temperature).log_softmax(dim=1)
    expected_N = all_NV.gather(1, target_N.unsqueeze(1)).squeeze(1)
    expected_N.backward(upstream_N.double())
    assert hidden_NH.grad is not None and plain_NH.grad is not None
    torch.testing.assert_close(found_N, expected_N.float(), atol=3e-6, rtol=0)
    torch.testing.assert_close(hidden_NH.grad, plain_NH.grad.float(), atol=3e-6, rtol=0)
    torch.testing.assert_close(entropy_N, -(all_NV.exp() * all_NV).sum(dim=1).float(), atol=2e-5, rtol=0)


def test_head_logprobs_of_two_tokens_by_hand() -> None:
    # logits (0, ln 3) -> probabilities 1/4, 3/4; entropy ln 4 - 3/4 ln 3. At temperature 2: weights 1, sqrt 3
    hidden_NH = torch.tensor([[math.log(3.0)]], requires_grad=True)
    weight_VH = torch.tensor([[0.0], [1.0]])
    target_N = torch.tensor([1])
    found_N, entropy_N = head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)
    assert found_N.item() == pytest.approx(math.log(0.75), abs=1e-6)
    assert entropy_N.item() == pytest.approx(math.log(4.0) - 0.75 * math.log(3.0), abs=1e-6)
    found_N.sum().backward()
    assert hidden_NH.grad is not None
    assert hidden_NH.grad.item() == pytest.approx(0.25, abs=1e-6)  # 1 - 3/4
    warm_N, _ = head_logprobs(hidden_NH, weight_VH, target_N, temperature=2.0)
    assert warm_N.item() == pytest.approx(math.log(math.sqrt(3.0) / (1 + math.sqrt(3.0))), abs=1e-6)


def test_entropy_carries_no_gradient() -> None:
    hidden_NH, weight_VH, target_N = _given()
    _, entropy_N = head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)
    assert not entropy_N.requires_grad


def test_head_gets_no_gradient() -> None:
    hidden_NH, weight_VH, target_N = _given()
    weight_VH.requires_grad_()
    head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)[0].sum().backward()
    assert weight_VH.grad is None


def test_head_logprobs_without_gradient_are_the_same() -> None:
    hidden_NH, weight_VH, target_N = _given()
    with_N, _ = head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)
    with torch.no_grad():
        without_N, _ = head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)
    assert torch.equal(with_N.detach(), without_N)


def test_no_tokens_give_no_logprobs_and_a_gradient_of_zero() -> None:
    hidden_NH = torch.randn(0, H, requires_grad=True)
    found_N, entropy_N = head_logprobs(hidden_NH, torch.randn(V, H), torch.empty(0, dtype=torch.long), temperature=1.0)
    assert found_N.shape == entropy_N.shape == (0,)
    found_N.sum().backward()
    assert hidden_NH.grad is not None


def test_bfloat16_logprobs_are_float32_and_close() -> None:
    hidden_NH, weight_VH, target_N = _given(torch.bfloat16)
    found_N, _ = head_logprobs(hidden_NH, weight_VH, target_N, temperature=1.0)
    assert found_N.dtype == torch.float32
    logits_NV = (hidden_NH @ weight_VH.T).detach().float()
    expected_N = logits_NV.log_softmax(dim=1).gather(1, target_N.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found_N.detach(), expected_N, atol=1e-5, rtol=0)
    found_N.sum().backward()
    assert hidden_NH.grad is not None and hidden_NH.grad.dtype == torch.bfloat16
