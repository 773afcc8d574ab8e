"""What a model can do before anything is spent on it: how hard each question is for it, and which recipe that speaks for.

Knows rollouts, verdicts and numbers; no model and no file. A probe reads training questions: the test split is not for
decisions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, comb
from statistics import fmean

from edge_rl.errors import DataError, VerifierError
from edge_rl.evaluation.estimators import mean_with_interval, pass_at_k
from edge_rl.types import Estimate, Rollout, StopReason, Verdict

BUCKETS: tuple[tuple[str, float], ...] = (("0", 0.0), ("1-10", 0.1), ("10-50", 0.5), ("50-90", 0.9), (">90", 1.0))
"""Names in per cent and upper ends of a question's success rate."""
DEAD, SOLVED = "0", ">90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Policy tokens of the completions."""

    median: int
    p95: int
    longest: int
    truncated: float
    """Share cut at the limit: the true lengths are longer where this is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """A base measured on training questions."""

    k: int
    """Completions per question."""
    pass_at_1: Estimate
    pass_at_k: Estimate
    buckets: Mapping[str, int]
    """Questions by their success rate in per cent; the names of BUCKETS."""
    success: Mapping[str, float]
    """Success rate by sample id, of the questions with a judged completion."""
    live_share: float
    """Share of groups of k that hold both right and wrong completions: only these carry a signal."""
    lengths: Lengths
    code_share: float
    """Share of completions that ran code."""
    tool_calls: float
    """Mean calls of those."""
    unjudged: int
    num_completions: int


def probe_report(
    rollouts: Sequence[Rollout], verdicts: Sequence[Verdict], *, k: int, resamples: int, seed: int
) -> ProbeReport:
    """Return what `k` completions of each question show.

    Raises: DataError without rollouts or with k < 2; VerifierError if nothing could be judged.
    """
    if not rollouts or k < 2:
        raise DataError(f"a probe needs questions and at least 2 completions of each; got {len(rollouts)} and k = {k}")
    correct: dict[str, int] = {}
    judged: dict[str, int] = {}
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        name = rollout.prompt.sample_id
        if verdict.correct is not None:
            judged[name] = judged.get(name, 0) + 1
            correct[name] = correct.get(name, 0) + verdict.correct
    whole = {name: count for name, count in judged.items() if count >= k}
    if not whole:
        raise VerifierError(
            f"no question has {k} judged completions; first reason: {verdicts[0].reason}; check gold answers and verifier"
        )
    with_code = [len(rollout.executions) for rollout in rollouts if rollout.executions]
    success = {name: correct[name] / count for name, count in judged.items()}
    return ProbeReport(
        k=k,
        pass_at_1=mean_with_interval(list(success.values()), resamples=resamples, seed=seed),
        pass_at_k=mean_with_interval(
            [pass_at_k(correct[name], count, k) for name, count in whole.items()], resamples=resamples, seed=seed
        ),
        buckets=count_buckets(success.values()),
        success=success,
        live_share=fmean(chance_of_signal(correct[name], count, k) for name, count in whole.items()),
        lengths=lengths_of(rollouts),
        code_share=len(with_code) / len(rollouts),
        tool_calls=fmean(with_code) if with_code else 0.0,
        unjudged=sum(verdict.correct is None for verdict in verdicts),
        num_completions=len(rollouts),
    )


def count_buckets(rates: Iterable[float]) -> dict[str, int]:
    """Return how many success rates lie in each of BUCKETS; a rate at an upper end belongs below it."""
    counts = {name: 0 for name, _ in BUCKETS}
    for rate in rates:
        counts[next(name for name, end in BUCKETS if rate <= end)] += 1
    return counts


def chance_of_signal(num_correct: int, num_samples: int, k: int) -> float:
    """Return the unbiased chance that k draws hold both right and wrong completions.

    1 - C(c, k) / C(n, k) - C(n - c, k) / C(n, k): neither all right nor all wrong.
    Raises: ValueError if k > num_samples.
    """
    if k > num_samples:
        raise ValueError(f"k must be at most {num_samples} (the number of samples), got {k}")
    ways = comb(num_samples, k)
    return 1.0 - comb(num_correct, k) / ways - comb(num_samples - num_correct, k) / ways


def lengths_of(rollouts: Sequence[Rollout]) -> Lengths:
    """Return the lengths of completions; a percentile is the smallest length that so many do not exceed."""
    lengths = sorted(rollout.num_policy_tokens for rollout in rollouts)

    def percentile(share: float) -> int:
        return lengths[max(0, ceil(share * len(lengths)) - 1)]

    return Lengths(
        median=percentile(0.5),
        p95=percentile(0.95),
        longest=lengths[-1],
        truncated=sum(rollout.stop_reason is StopReason.LENGTH for rollout in rollouts) / len(rollouts),
    )


# -- advice ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What matters for a recipe besides the probe."""

    num_traces: int
    """Training samples with a worked trace."""
    has_tools: bool
    max_tokens: int
    """Length limit of the probe."""
    recipes: Sequence[str]
    """Names that can be advised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A recipe with its reasons."""

    recipe: str
    settings: Mapping[str, int | float | str]
    """section.key -> value, for --set."""
    reasons: tuple[str, ...]
    worth_it: bool
    """False where training cannot gain anything on these questions as they are."""


Row = tuple[Callable[[ProbeReport, Circumstances], bool], str, bool, str]
"""Condition, recipe, whether training is worth it, reason."""

TABLE: tuple[Row, ...] = (
    (
        lambda probe, here: probe.pass_at_k.value < 0.05 and here.num_traces < MIN_TRACES,
        "default",
        False,
        "The model finds almost no answer in {k} tries, and reinforcement needs some to begin with: write hinted traces for "
        "30 questions first, or take easier questions.",
    ),
    (
        lambda probe, here: probe.pass_at_k.value < 0.05,
        "default",
        True,
        "The model finds almost no answer in {k} tries, so it first learns from the traces, and reinforcement builds on that.",
    ),
    (
        lambda probe, here: probe.pass_at_1.value > 0.9,
        "dler",
        False,
        "The model solves {pass_at_1} of the answers at once: there is little to learn except to be shorter.",
    ),
    (
        lambda probe, here: here.has_tools and probe.code_share > 0.5 and probe.tool_calls > 1.5,
        "gtpo",
        True,
        "Completions call the tool {tool_calls} times on average, so each turn gets credit of its own.",
    ),
    (
        lambda probe, here: here.has_tools and probe.code_share < 0.1 and here.num_traces >= MIN_TRACES,
        "default",
        True,
        "The samples offer a tool and only {code_share} of the completions use it: the traces show how.",
    ),
    (
        lambda probe, here: probe.lengths.p95 > 4 * probe.lengths.median and probe.lengths.truncated > 0.2,
        "dler",
        True,
        "Many completions run into the length limit while half of them need {median} tokens: too long is then wrong.",
    ),
    (
        lambda probe, here: True,
        "grpo",
        True,
        "The model solves {pass_at_1} at once and {pass_at_k} in {k} tries: there is something to reinforce.",
    ),
)
"""The decision table: the first row that holds decides."""
MIN_TRACES = 10


def advise(probe: ProbeReport, here: Circumstances) -> Advice:
    """Return the recipe that the decision table names, with settings that the numbers speak for."""
    words = {
        "k": probe.k,
        "pass_at_1": f"{probe.pass_at_1.value:.0%}",
        "pass_at_k": f"{probe.pass_at_k.value:.0%}",
        "code_share": f"{probe.code_share:.0%}",
        "tool_calls": f"{probe.tool_calls:.1f}",
        "median": probe.lengths.median,
    }
    recipe, worth_it, reason = next(
        (name, worth_it, reason) for condition, name, worth_it, reason in TABLE if condition(probe, here)
    )
    reasons = [reason.format(**words)]
    settings: dict[str, int | float | str] = {}
    if here.num_traces < MIN_TRACES:
        settings["warm_start.kind"] = "none"
        reasons.append(f"{here.num_traces} samples carry a trace; a warm start wants at least {MIN_TRACES}.")
    elif recipe != "default" and probe.pass_at_k.value >= 0.5:
        settings["warm_start.kind"] = "none"
        reasons.append(f"In {probe.k} tries the model solves {words['pass_at_k']} already; it needs no warm start.")
    limit = -(-probe.lengths.p95 // 8) * 8
    if probe.lengths.truncated > 0.1:
        settings |= _length_limit(2 * here.max_tokens)
        reasons.append(f"{probe.lengths.truncated:.0%} of the completions were cut at {here.max_tokens} tokens.")
    elif limit < 0.7 * here.max_tokens:
        settings |= _length_limit(limit)
        reasons.append(f"95 % of the completions have at most {probe.lengths.p95} tokens; a lower limit saves time.")
    if 0 < probe.live_share < 0.4 and recipe != "grpo":
        settings["rollout.max_resample_rounds"] = 3
        reasons.append(
            f"Only {probe.live_share:.0%} of the groups would carry a signal, so others are drawn for the rest."
        )
    assert recipe in here.recipes, f"the decision table names {recipe}, which does not exist"
    return Advice(recipe=recipe, settings=settings, reasons=tuple(reasons), worth_it=worth_it)


def _length_limit(tokens: int) -> dict[str, int]:
    return {"rollout.max_tokens": tokens, "rollout.chunk_tokens": tokens}  # equal: no chunks
