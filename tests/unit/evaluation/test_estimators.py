"""Estimators against numbers worked out by hand."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from edge_rl.errors import DataError
from edge_rl.evaluation.estimators import mean_with_interval, paired_difference, pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("num_correct", "num_samples", "k", "expected"),
    [
        (1, 4, 1, 0.25),
        (1, 4, 2, 0.5),  # of the 6 pairs, 3 contain the right one
        (2, 4, 2, 5 / 6),  # 1 of 6 pairs is all wrong
        (3, 4, 2, 1.0),  # 2 wrong cannot be drawn from 1
        (0, 8, 8, 0.0),
        (1, 8, 8, 1.0),
        (2, 16, 8, 23 / 30),  # 1 - C(14,8)/C(16,8) = 1 - 3003/12870
        (8, 8, 1, 1.0),
    ],
)
def test_pass_at_k_matches_hand_computation(num_correct: int, num_samples: int, k: int, expected: float) -> None:
    assert pass_at_k(num_correct, num_samples, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("num_correct", "num_samples", "k", "expected"),
    [(3, 4, 1, 0.75), (3, 4, 2, 0.5), (2, 4, 2, 1 / 6), (1, 4, 2, 0.0), (4, 4, 4, 1.0), (0, 4, 1, 0.0)],
)
def test_pass_hat_k_matches_hand_computation(num_correct: int, num_samples: int, k: int, expected: float) -> None:
    assert pass_hat_k(num_correct, num_samples, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_matches_the_product_of_the_paper() -> None:
    for num_samples in range(1, 13):
        for num_correct in range(num_samples + 1):
            for k in range(1, num_samples + 1):
                num_wrong = num_samples - num_correct
                product = float(np.prod(1.0 - k / np.arange(num_wrong + 1, num_samples + 1)))
                expected = 1.0 if num_wrong < k else 1.0 - product
                assert pass_at_k(num_correct, num_samples, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(("num_correct", "num_samples", "k"), [(1, 4, 5), (1, 4, 0), (5, 4, 1), (-1, 4, 1), (0, 0, 1)])
def test_estimators_refuse_what_does_not_exist(
    estimator: Callable[[int, int, int], float], num_correct: int, num_samples: int, k: int
) -> None:
    with pytest.raises(ValueError, match="must be in"):
        estimator(num_correct, num_samples, k)


def test_interval_covers_the_mean_and_has_the_width_of_the_normal_approximation() -> None:
    values = [1.0] * 60 + [0.0] * 140
    estimate = mean_with_interval(values, resamples=10_000, seed=1)
    assert estimate.value == pytest.approx(0.3, abs=1e-12)
    half_width = 1.96 * (0.3 * 0.7 / 200) ** 0.5  # 0.0635
    assert estimate.low == pytest.approx(0.3 - half_width, abs=0.006)
    assert estimate.high == pytest.approx(0.3 + half_width, abs=0.006)


def test_interval_of_two_values_is_known_exactly() -> None:
    # Means of two draws from {0, 1} are 0, 0.5, 1 with chances 1/4, 1/2, 1/4: the 2.5 % and 97.5 % points are 0 and 1.
    estimate = mean_with_interval([0.0, 1.0], resamples=2_000, seed=0)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)


def test_interval_leaves_out_five_percent_of_the_means() -> None:
    # Standard deviation of 0..99 is 28.87, of a mean of 100 draws 2.887; 1.96 of them on both sides.
    spread = mean_with_interval(list(np.arange(100.0)), resamples=20_000, seed=3)
    assert spread.high - spread.low == pytest.approx(2 * 1.96 * 2.887, rel=0.03)


def test_interval_of_one_value_is_that_value() -> None:
    estimate = mean_with_interval([0.25], resamples=100, seed=0)
    assert (estimate.value, estimate.low, estimate.high) == (0.25, 0.25, 0.25)


def test_interval_depends_only_on_values_and_seed() -> None:
    values = list(np.linspace(0, 1, 37))
    first = mean_with_interval(values, resamples=500, seed=7)
    assert first == mean_with_interval(values, resamples=500, seed=7)
    assert first != mean_with_interval(values, resamples=500, seed=8)


def test_interval_refuses_nothing_to_average() -> None:
    with pytest.raises(ValueError, match="at least 1 value"):
        mean_with_interval([], resamples=100, seed=0)
    with pytest.raises(ValueError, match="at least 1 value and 1 resample"):
        mean_with_interval([1.0], resamples=0, seed=0)


def test_paired_difference_subtracts_question_by_question() -> None:
    a = {"q1": 1.0, "q2": 0.5, "q3": 0.75}
    b = {"q3": 0.25, "q1": 0.5, "q2": 0.0}
    estimate = paired_difference(a, b, resamples=1_000, seed=0)
    # Every question gains exactly 0.5, so the paired interval has no width although both sides vary.
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_paired_difference_has_the_sign_of_a_minus_b() -> None:
    estimate = paired_difference({"q1": 0.0, "q2": 0.0}, {"q1": 1.0, "q2": 0.5}, resamples=1_000, seed=0)
    assert (estimate.value, estimate.low, estimate.high) == (-0.75, -1.0, -0.5)


def test_paired_difference_refuses_other_questions() -> None:
    with pytest.raises(DataError, match=r"1 only on the left \['q2'\], 1 only on the right \['q3'\]"):
        paired_difference({"q1": 1.0, "q2": 0.0}, {"q1": 1.0, "q3": 0.0}, resamples=100, seed=0)
    with pytest.raises(DataError, match="at least 1"):
        paired_difference({}, {}, resamples=100, seed=0)


def test_interval_of_200_questions_takes_under_a_second() -> None:
    started = time.process_time()
    mean_with_interval([0.0, 1.0] * 100, resamples=10_000, seed=0)
    assert time.process_time() - started < 1.0
