"""Weights for the gap between engine and trainer, by hand."""

import math
from typing import cast

import pytest
import torch

from edge_rl.learning.correction import CorrectionSettings, correction_weights, drift_metrics

LN2 = math.log(2.0)


def _weights(gaps: list[list[float]], mask: list[list[bool]] | None = None, **settings: float) -> list[list[float]]:
    gap_BT = torch.tensor(gaps, dtype=torch.float64)
    mask_BT = torch.ones_like(gap_BT, dtype=torch.bool) if mask is None else torch.tensor(mask)
    weights_BT = correction_weights(gap_BT, mask_BT, CorrectionSettings(**settings))
    return cast(list[list[float]], weights_BT.tolist())


def test_a_token_weighs_what_the_policies_differ_by_up_to_the_cap() -> None:
    # e^ln2 = 2 up to the cap 1.5; e^-ln2 = 0.5; the sum of the gaps is 0
    assert _weights([[LN2, -LN2, 0.0]], cap=1.5) == [pytest.approx([1.5, 0.5, 1.0], abs=1e-12)]
    assert _weights([[LN2, -LN2]], cap=4.0) == [pytest.approx([2.0, 0.5], abs=1e-12)]


@pytest.mark.parametrize(
    ("gaps", "kept"),
    [
        ([0.5, 0.5], True),  # e^1.0 = 2.7 < 3
        ([0.6, 0.6], False),  # e^1.2 = 3.3 > 3
        ([-0.5, -0.5], True),
        ([-0.6, -0.6], False),
        ([5.0, -5.0], True),  # the product is 1, each token has its cap
    ],
)
def test_a_rollout_far_from_the_engine_is_left_out_whole(gaps: list[float], kept: bool) -> None:
    weights = _weights([gaps, [0.0, 0.0]], sequence_limit=3.0)
    assert all(weight > 0 for weight in weights[0]) is kept
    assert any(weight > 0 for weight in weights[0]) is kept
    assert weights[1] == [1.0, 1.0]


def test_masked_tokens_weigh_nothing_and_count_for_no_product() -> None:
    mask = [[True, False, True]]
    assert _weights([[0.0, 9.0, 0.0]], mask) == [[1.0, 0.0, 1.0]]
    assert _weights([[0.0, math.nan, 0.0]], mask) == [[1.0, 0.0, 1.0]]
    assert _weights([[0.0, -math.inf, 0.0]], mask) == [[1.0, 0.0, 1.0]]


def test_an_absurd_gap_gives_a_finite_weight() -> None:
    assert _weights([[900.0, -900.0]], cap=2.0) == [[2.0, pytest.approx(math.exp(-20.0), rel=1e-9)]]


def test_drift_by_hand() -> None:
    # gaps ln2, -ln2, 0, 0; weights 2, 0.5, 1, 0
    found = drift_metrics(torch.tensor([LN2, -LN2, 0.0, 0.0]), torch.tensor([2.0, 0.5, 1.0, 0.0]))
    assert found["drift/mean"] == pytest.approx(LN2 / 2, abs=1e-7)
    assert found["drift/max"] == pytest.approx(LN2, abs=1e-7)
    # k3: (2 - ln2 - 1) + (0.5 + ln2 - 1) = 0.5, over 4
    assert found["drift/kl"] == pytest.approx(0.125, abs=1e-7)
    assert found["drift/masked"] == 0.25
    # the square of 3.5 over 4 times the squares 4, 0.25 and 1
    assert found["drift/ess"] == pytest.approx(12.25 / 21.0, abs=1e-7)


def test_without_any_weight_the_effective_size_is_0() -> None:
    assert drift_metrics(torch.tensor([3.0]), torch.tensor([0.0]))["drift/ess"] == 0.0
