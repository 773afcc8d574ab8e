"""One draw per row, with its exact log-probability."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from edge_rl.errors import EngineError
from edge_rl.rollout.engines.sampling import BLOCK, sample, uniform

# Shapes: B rows, V vocabulary.
EDGES = (0.0, 1e-300, 2.0**-53, 0.25, 0.5, 0.75, 1 - 2.0**-30, 1 - 2.0**-53)


def _logits(vocabulary: int, *, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def _draw(logits_V: Tensor, uniform_B: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    return sample(logits_V.expand(len(uniform_B), -1), uniform_B, torch.full((len(uniform_B),), temperature))


@pytest.mark.parametrize("vocabulary", [2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sample_gives_each_token_its_share_of_an_even_grid(vocabulary: int, temperature: float) -> None:
    # Of n evenly spaced numbers, a token of probability p gets n p, to within 1 at the edges of its interval.
    count = 4001
    logits_V = _logits(vocabulary)
    grid_B = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens_B, _ = _draw(logits_V, grid_B, temperature)
    expected_V = (logits_V.double() / temperature).softmax(0) * count
    counted_V = torch.bincount(tokens_B, minlength=vocabulary)
    assert len(counted_V) == vocabulary
    assert float((counted_V - expected_V).abs().max()) < 1.01


def test_sample_with_uniform_follows_the_distribution() -> None:
    # Chi-square with 299 degrees of freedom; by Wilson and Hilferty its cube root is normal. The limit of six standard
    # deviations gives a false alarm with probability 1e-9, if the numbers were drawn anew.
    vocabulary, count = 300, 6000
    logits_V = _logits(vocabulary, seed=1, spread=0.7)
    draws_B = torch.tensor([uniform(seed, position) for seed in range(60) for position in range(100)]).double()
    tokens_B, _ = _draw(logits_V, draws_B)
    expected_V = logits_V.double().softmax(0) * count
    assert float(expected_V.min()) > 1.0
    counted_V = torch.bincount(tokens_B, minlength=vocabulary).double()
    chi_square = float(((counted_V - expected_V) ** 2 / expected_V).sum())
    freedom = vocabulary - 1
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(z) < 6.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sample_returns_the_exact_logprob_after_the_temperature(temperature: float) -> None:
    logits_V = _logits(1000, spread=4.0)
    draws_B = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    tokens_B, logprobs_B = _draw(logits_V, draws_B, temperature)
    expected_B = (logits_V.double() / temperature).log_softmax(0)[tokens_B]
    torch.testing.assert_close(logprobs_B, expected_B, atol=2e-6, rtol=0)


def test_sample_at_temperature_zero_takes_the_top_token_with_the_logprob_of_the_undivided_logits() -> None:
    # logits 0, ln 3: probabilities 1/4, 3/4
    logits_BV = torch.tensor([[0.0, math.log(3.0)]] * len(EDGES))
    draws_B = torch.tensor(EDGES, dtype=torch.float64)
    tokens_B, logprobs_B = sample(logits_BV, draws_B, torch.zeros(len(EDGES)))
    assert tokens_B.tolist() == [1] * len(EDGES)
    torch.testing.assert_close(logprobs_B, torch.full_like(logprobs_B, math.log(0.75)), atol=1e-6, rtol=0)


def test_sample_treats_each_row_by_its_own_temperature() -> None:
    # same logits ln(1, 4): T = 1 -> 1/5, 4/5; T = 2 -> weights 1, 2 -> 1/3, 2/3; T = 0 -> greedy, ln 4/5
    logits_BV = torch.tensor([[0.0, math.log(4.0)]] * 3)
    tokens_B, logprobs_B = sample(
        logits_BV, torch.tensor([0.19, 0.32, 0.0], dtype=torch.float64), torch.tensor([1.0, 2.0, 0.0])
    )
    assert tokens_B.tolist() == [0, 0, 1]
    expected_B = torch.tensor([1 / 5, 1 / 3, 4 / 5], dtype=torch.float64).log()
    torch.testing.assert_close(logprobs_B, expected_B, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alive", [0, 255, 256, 511, 700])
def test_sample_never_draws_a_token_of_probability_zero(alive: int) -> None:
    # Exactly one token is possible, first or last of its block, or inside; whatever the number, it is drawn.
    logits_V = torch.full((701,), -math.inf)
    logits_V[alive] = -3.0
    tokens_B, logprobs_B = _draw(logits_V, torch.tensor(EDGES, dtype=torch.float64))
    assert tokens_B.tolist() == [alive] * len(EDGES)
    assert logprobs_B.abs().max() < 1e-12


def test_sample_never_draws_padding_or_a_dead_token_at_the_edges_of_the_unit_interval() -> None:
    logits_V = _logits(BLOCK + 3, spread=3.0)
    dead = torch.zeros(BLOCK + 3, dtype=torch.bool)
    dead[[0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 2]] = True
    logits_V[dead] = -math.inf
    grid_B = torch.cat([torch.tensor(EDGES, dtype=torch.float64), torch.linspace(0, 1 - 1e-15, 5000).double()])
    tokens_B, logprobs_B = _draw(logits_V, grid_B.clamp(max=1 - 2.0**-53))
    assert int(tokens_B.max()) < BLOCK + 3
    assert not bool(dead[tokens_B].any())
    assert bool(logprobs_B.isfinite().all())


def test_sample_reaches_a_tail_that_single_precision_would_lose() -> None:
    # 40 000 tokens of weight e^-12 (sum 0.2458) behind one of weight 1: a float32 running sum beside 1.0 would round them.
    logits_V = torch.full((40_001,), -12.0)
    logits_V[0] = 0.0
    tail = 40_000 * math.exp(-12.0)
    count = 200
    grid_B = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens_B, _ = _draw(logits_V, grid_B)
    assert int((tokens_B == 0).sum()) == pytest.approx(count / (1 + tail), abs=1.01)
    in_first_half = int(((tokens_B > 0) & (tokens_B <= 20_000)).sum())
    assert in_first_half == pytest.approx(count * tail / (1 + tail) / 2, abs=2.01)


def test_sample_of_a_row_does_not_depend_on_its_neighbours() -> None:
    logits_BV = torch.stack([_logits(700, seed=seed, spread=1 + seed) for seed in range(6)])
    draws_B = torch.tensor([uniform(seed, 3) for seed in range(6)], dtype=torch.float64)
    temperatures_B = torch.tensor([1.0, 0.5, 0.0, 1.0, 2.0, 1.0])
    tokens_B, logprobs_B = sample(logits_BV, draws_B, temperatures_B)
    for row in range(6):
        token, logprob = sample(logits_BV[row : row + 1], draws_B[row : row + 1], temperatures_B[row : row + 1])
        assert token.item() == tokens_B[row]
        assert logprob.item() == pytest.approx(logprobs_B[row].item(), abs=1e-9)


def test_sample_leaves_the_logits_as_they_are() -> None:
    logits_BV = _logits(300).expand(2, -1).clone()
    before_BV = logits_BV.clone()
    sample(logits_BV, torch.tensor([0.3, 0.9]).double(), torch.tensor([1.0, 0.5]))
    assert torch.equal(logits_BV, before_BV)


def test_sample_reads_bfloat16_logits() -> None:
    logits_BV = _logits(300).bfloat16().unsqueeze(0)
    token_B, logprob_B = sample(logits_BV, torch.tensor([0.4]).double(), torch.ones(1))
    expected_V = logits_BV[0].double().log_softmax(0)
    assert logprob_B.item() == pytest.approx(float(expected_V[int(token_B)]), abs=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(value: float, temperature: float) -> None:
    logits_BV = torch.stack([_logits(300), torch.full((300,), value)])
    with pytest.raises(EngineError, match="not finite"):
        sample(logits_BV, torch.tensor([0.3, 0.9]).double(), torch.tensor([temperature, temperature]))


def test_uniform_depends_on_seed_and_position_only() -> None:
    # From the definition: the first 53 bits of blake2b(seed, position) as a fraction.
    assert uniform(0, 0) == uniform(0, 0)
    assert 0.0 <= uniform(2**63 - 1, 10**6) < 1.0
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500
    assert uniform(1, 2) != uniform(2, 1)


def test_uniform_is_even_over_seeds_and_over_positions() -> None:
    # Mean of 4000 numbers: 1/2 with standard deviation 1 / sqrt(12 * 4000) = 0.0046; six of them: false alarm 2e-9.
    for numbers in ([uniform(seed, 7) for seed in range(4000)], [uniform(7, position) for position in range(4000)]):
        assert sum(numbers) / 4000 == pytest.approx(0.5, abs=6 * 0.0046)
        neighbours = sum((a - 0.5) * (b - 0.5) for a, b in pairwise(numbers)) / 3999
        assert neighbours == pytest.approx(0.0, abs=6 / 12 / math.sqrt(3999))
