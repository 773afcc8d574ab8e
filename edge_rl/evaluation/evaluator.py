"""Measures a fixed checkpoint on held-out questions: hint-free, on a path of its own, with no state of training.

Knows prompts, rollouts and verdicts. Knows no model, no engine, no tokenizer and no verifier: it is handed a `collect`
and a `judge`.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from edge_rl.errors import DataError, VerifierError
from edge_rl.evaluation.estimators import mean_with_interval, paired_difference, pass_at_k
from edge_rl.types import Author, Estimate, EvalReport, Prompt, Rollout, StopReason, Verdict

Collect = Callable[[Sequence[Prompt], int], Sequence[Rollout]]
"""Takes prompts and a number n; returns n finished rollouts per prompt, in any order."""

Judge = Callable[[Rollout], Verdict]
"""Judges one finished rollout."""


def evaluate(  # noqa: PLR0913  (a door wires it by keyword)
    name: str,
    prompts: Sequence[Prompt],
    *,
    num_samples: int,
    num_at_8: int = 0,
    collect: Collect,
    judge: Judge,
    resamples: int,
    seed: int,
) -> EvalReport:
    """Return the measurements of the policy behind `collect`, `num_samples` completions per prompt.

    Of fewer than 8 completions there is no pass@8, and 8 of every question cost much time: so `num_at_8` of the prompts,
    evenly spread over their order, are completed 8 times. pass@1 is unbiased whatever their number.

    Completions that could not be judged are left out of every rate and counted in `unjudged`; a question without a
    judged completion is left out of pass@1. pass@8 is over the questions with 8 judged completions, None without any.

    Raises: DataError if a prompt or a rollout carries a hint or a worked example, or if `collect` returned other
    rollouts than it was asked for; VerifierError if nothing could be judged.
    """
    _require_hint_free(name, prompts)
    if num_samples < 1:
        raise DataError(f"evaluation {name!r}: num_samples must be at least 1, got {num_samples}")
    started = time.perf_counter()
    wide, narrow = _divide(prompts, num_at_8 if num_samples < 8 else 0)
    rollouts = [*(collect(wide, 8) if wide else ()), *(collect(narrow, num_samples) if narrow else ())]
    _check_rollouts(name, dict.fromkeys(wide, 8) | dict.fromkeys(narrow, num_samples), rollouts)
    verdicts = [judge(rollout) for rollout in rollouts]
    seconds = time.perf_counter() - started

    num_correct = {prompt.sample_id: 0 for prompt in prompts}
    num_judged = {prompt.sample_id: 0 for prompt in prompts}
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        if verdict.correct is not None:
            num_judged[rollout.prompt.sample_id] += 1
            num_correct[rollout.prompt.sample_id] += verdict.correct
    rates = pass_rates(num_correct, num_judged)
    if not rates:
        raise VerifierError(
            f"evaluation {name!r}: none of {len(rollouts)} completions could be judged; first reason: "
            f"{verdicts[0].reason}; check the gold answers and the verifier of these samples"
        )
    return EvalReport(
        name=name,
        num_correct=num_correct,
        num_samples=num_judged,
        pass_at_1=mean_with_interval(list(rates.values()), resamples=resamples, seed=seed),
        pass_at_8=_pass_at_8(num_correct, num_judged, resamples=resamples, seed=seed),
        code_share=_mean_over_questions(rollouts, lambda rollout: float(bool(rollout.executions))),
        tokens=_mean_over_questions(rollouts, lambda rollout: float(rollout.num_policy_tokens)),
        unjudged=sum(verdict.correct is None for verdict in verdicts),
        truncated=sum(rollout.stop_reason is StopReason.LENGTH for rollout in rollouts),
        seconds=seconds,
    )


def pass_rates(num_correct: Mapping[str, int], num_judged: Mapping[str, int]) -> dict[str, float]:
    """Return pass@1 per question, in the order of `num_judged`, for the questions with a judged completion."""
    return {question: pass_at_k(num_correct[question], count, 1) for question, count in num_judged.items() if count > 0}


def paired(report_a: EvalReport, report_b: EvalReport, *, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Return pass@1 of a minus that of b, with its 95 % paired bootstrap interval over questions.

    A question that one side could not judge at all is left out; both reports count it in `unjudged`.

    Raises: DataError if the reports are of different questions.
    """
    if report_a.num_samples.keys() != report_b.num_samples.keys():
        raise DataError(
            f"reports {report_a.name!r} and {report_b.name!r} are of different questions "
            f"({len(report_a.num_samples)} and {len(report_b.num_samples)}); evaluate both on the same split"
        )
    rates_a = pass_rates(report_a.num_correct, report_a.num_samples)
    rates_b = pass_rates(report_b.num_correct, report_b.num_samples)
    common = rates_a.keys() & rates_b.keys()
    return paired_difference(
        {question: rates_a[question] for question in common},
        {question: rates_b[question] for question in common},
        resamples=resamples,
        seed=seed,
    )


def paired_at_8(
    report_a: EvalReport, report_b: EvalReport, *, resamples: int = 10_000, seed: int = 0
) -> tuple[Estimate, int] | None:
    """Return (pass@8 of a minus that of b with its 95 % paired interval, questions); None without common ones.

    Over the questions of which both have 8 judged completions.
    """
    wide = [name for name, count in report_a.num_samples.items() if min(count, report_b.num_samples.get(name, 0)) >= 8]
    if not wide:
        return None
    rates_a, rates_b = (
        {name: pass_at_k(report.num_correct[name], report.num_samples[name], 8) for name in wide}
        for report in (report_a, report_b)
    )
    return paired_difference(rates_a, rates_b, resamples=resamples, seed=seed), len(wide)


def save_report(report: EvalReport, path: Path) -> None:
    """Write a report as JSON; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(asdict(report), file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load_report(path: Path) -> EvalReport:
    """Return a report that `save_report` wrote.

    Raises: DataError if the file is absent or holds no report.
    """
    try:
        fields = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        at_8 = fields.pop("pass_at_8")
        at_1 = fields.pop("pass_at_1")
        return EvalReport(pass_at_1=Estimate(**at_1), pass_at_8=None if at_8 is None else Estimate(**at_8), **fields)
    except OSError as error:
        raise DataError(f"evaluation report {path}: {error.strerror}; run the evaluation first") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is no evaluation report ({type(error).__name__}: {error}); evaluate again") from error


def _pass_at_8(
    num_correct: Mapping[str, int], num_judged: Mapping[str, int], *, resamples: int, seed: int
) -> Estimate | None:
    rates = [pass_at_k(num_correct[question], count, 8) for question, count in num_judged.items() if count >= 8]
    return mean_with_interval(rates, resamples=resamples, seed=seed) if rates else None


def _mean_over_questions(rollouts: Sequence[Rollout], value: Callable[[Rollout], float]) -> float:
    """Return the mean over questions of the mean over their completions: a question asked more often weighs the same."""
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        values.setdefault(rollout.prompt.sample_id, []).append(value(rollout))
    return fmean(fmean(of_question) for of_question in values.values())


def _divide(prompts: Sequence[Prompt], num_wide: int) -> tuple[list[Prompt], list[Prompt]]:
    """Return (`num_wide` prompts evenly spread over the order, the others)."""
    num_wide = min(num_wide, len(prompts))
    chosen = {index * len(prompts) // num_wide for index in range(num_wide)}
    return (
        [prompt for index, prompt in enumerate(prompts) if index in chosen],
        [prompt for index, prompt in enumerate(prompts) if index not in chosen],
    )


def _require_hint_free(name: str, prompts: Sequence[Prompt]) -> None:
    if not prompts:
        raise DataError(f"evaluation {name!r}: no questions; choose a split that has some")
    for prompt in prompts:
        if prompt.hint_level > 0 or prompt.shots > 0:
            raise DataError(
                f"evaluation {name!r}: the prompt of {prompt.sample_id} has hint level {prompt.hint_level} and "
                f"{prompt.shots} worked examples; evaluation allows 0 and 0: build its prompts without hints"
            )
    repeated = [sample_id for sample_id, count in Counter(p.sample_id for p in prompts).items() if count > 1]
    if repeated:
        raise DataError(
            f"evaluation {name!r}: {len(repeated)} of the questions occur twice: {repeated[0]}, ...; ask each once"
        )


def _check_rollouts(name: str, expected: Mapping[Prompt, int], rollouts: Sequence[Rollout]) -> None:
    asked = {prompt.sample_id: prompt for prompt in expected}
    for rollout in rollouts:
        where = f"evaluation {name!r}: a rollout of {rollout.prompt.sample_id}"
        if asked.get(rollout.prompt.sample_id) != rollout.prompt:
            raise DataError(f"{where} started from another prompt than the one asked; collect must not change prompts")
        if any(segment.author is Author.HINT for segment in rollout.segments):
            raise DataError(f"{where} contains a hint; evaluation is hint-free: collect without hints")
        if not rollout.is_finished:
            raise DataError(f"{where} has no stop reason; collect must finish every rollout")
    counts = Counter(rollout.prompt.sample_id for rollout in rollouts)
    for sample_id, prompt in asked.items():
        if counts[sample_id] != expected[prompt]:
            raise DataError(
                f"evaluation {name!r}: {counts[sample_id]} rollouts of {sample_id}, expected {expected[prompt]}; "
                "collect must return every one it was asked for"
            )
