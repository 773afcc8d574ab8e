"""What a measurement during training says to the guards."""

from statistics import fmean

from edge_rl.evaluation.estimators import pass_at_k
from edge_rl.monitor.guards import Validation
from edge_rl.types import EvalReport

MIN_K = 4
"""pass@k of fewer tries is nearly pass@1."""


def validation_of(step: int, report: EvalReport) -> Validation:
    """Return the validation after `step` optimizer steps; its k is the fewest judged completions of a question."""
    counts = [count for count in report.num_samples.values() if count]
    k = min(counts, default=0)
    at_k = None
    if k >= MIN_K:
        rates = [
            pass_at_k(report.num_correct[question], count, k) for question, count in report.num_samples.items() if count
        ]
        at_k = fmean(rates)
    return Validation(step=step, pass_at_1=report.pass_at_1.value, pass_at_k=at_k)
