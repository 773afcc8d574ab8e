"""The statistics of an evaluation: pass@k, pass^k, means and paired differences with intervals.

Knows numbers only: no samples, no models, no files.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_rl.errors import DataError
from edge_rl.types import Estimate

CONFIDENCE = 0.95
"""Coverage of every interval."""

_DRAWS_AT_ONCE = 4_000_000
"""Bootstrap draws held in memory at a time: 32 MB of indices."""


def pass_at_k(num_correct: int, num_samples: int, k: int) -> float:
    """Return the unbiased chance that at least one of k draws is correct.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    Raises: ValueError if k > num_samples, where the estimate does not exist (it is not 1.0).
    """
    _check_counts(num_correct, num_samples, k)
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_hat_k(num_correct: int, num_samples: int, k: int) -> float:
    """Return pass^k, the unbiased chance that all of k draws are correct: how reliable, where pass@k says how capable.

    Source: Yao et al. 2024 (tau-bench), arXiv:2406.12045, section 3.
    Raises: ValueError if k > num_samples, where the estimate does not exist.
    """
    _check_counts(num_correct, num_samples, k)
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def mean_with_interval(values: Sequence[float], *, resamples: int, seed: int) -> Estimate:
    """Return the mean of one value per question with its 95 % percentile bootstrap interval over questions.

    Completions of one question are not independent, so whole questions are drawn.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    Raises: ValueError without values or with resamples < 1.
    """
    if not len(values) or resamples < 1:
        raise ValueError(f"a mean needs at least 1 value and 1 resample, got {len(values)} and {resamples}")
    values_Q = np.asarray(values, dtype=np.float64)
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(_resampled_means(values_Q, resamples, seed), [tail, 1.0 - tail])
    return Estimate(value=float(values_Q.mean()), low=float(low), high=float(high))


def paired_difference(
    a_by_id: Mapping[str, float], b_by_id: Mapping[str, float], *, resamples: int, seed: int
) -> Estimate:
    """Return the mean of a - b over the same questions with its 95 % paired bootstrap interval.

    Pairing takes the difficulty of the questions out of the interval, so it is narrower than two separate ones.

    Raises: DataError if the two sides hold different questions, or none.
    """
    if not a_by_id or a_by_id.keys() != b_by_id.keys():
        only_a, only_b = sorted(a_by_id.keys() - b_by_id.keys()), sorted(b_by_id.keys() - a_by_id.keys())
        raise DataError(
            f"a paired difference needs the same questions on both sides, and at least 1: {len(a_by_id)} and "
            f"{len(b_by_id)} given, {len(only_a)} only on the left {only_a[:3]}, {len(only_b)} only on the right "
            f"{only_b[:3]}; evaluate both on the same questions"
        )
    differences = [a_by_id[question] - b_by_id[question] for question in sorted(a_by_id)]
    return mean_with_interval(differences, resamples=resamples, seed=seed)


# Shapes: Q questions, R resamples.
def _resampled_means(values_Q: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    num_questions = len(values_Q)
    rows = max(1, _DRAWS_AT_ONCE // num_questions)
    means_R = np.empty(resamples)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        picks_RQ = generator.integers(0, num_questions, size=(stop - start, num_questions))
        means_R[start:stop] = values_Q[picks_RQ].mean(axis=1)
    return means_R


def _check_counts(num_correct: int, num_samples: int, k: int) -> None:
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct must be in 0..{num_samples}, got {num_correct}")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k must be in 1..{num_samples} (the number of samples), got {k}")
