"""Several verifiers over one completion. Knows no kind: the verifiers arrive through `find`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge_rl.errors import DataError
from edge_rl.types import Sample, Verdict, Verifier

Find = Callable[[str], Verifier]


def judge_all_of(completion: str, sample: Sample, find: Find) -> Verdict:
    """Return right if every verifier of options["verifiers"] says so, wrong if one says wrong, else unjudged.

    Each entry: {"kind": ..., "answer": ... (default: the sample's), "options": {...}}.
    """
    verdicts = _verdicts(completion, sample, find)
    wrong = next((verdict for verdict in verdicts if verdict.correct is False), None)
    if wrong is not None:
        return Verdict(correct=False, reason=wrong.reason, route=f"all_of:{wrong.route}")
    if any(verdict.correct is None for verdict in verdicts):
        return Verdict(correct=None, reason="one verifier could not judge", route="all_of")
    return Verdict(correct=True, reason=f"all {len(verdicts)} agree", route="all_of")


def judge_vote(completion: str, sample: Sample, find: Find) -> Verdict:
    """Return what more than half of all verifiers say; unjudged where neither side has that many."""
    verdicts = _verdicts(completion, sample, find)
    right, wrong = (sum(verdict.correct is value for verdict in verdicts) for value in (True, False))
    for value, count in ((True, right), (False, wrong)):
        if 2 * count > len(verdicts):
            return Verdict(correct=value, reason=f"{right} say right, {wrong} wrong of {len(verdicts)}", route="vote")
    return Verdict(correct=None, reason=f"no majority: {right} right, {wrong} wrong of {len(verdicts)}", route="vote")


def _verdicts(completion: str, sample: Sample, find: Find) -> list[Verdict]:
    entries: list[Mapping[str, Any]] = list(sample.options.get("verifiers", ()))
    if not entries or any(entry.get("kind") in (None, "all_of", "vote") for entry in entries):
        raise DataError(f"sample {sample.id}: options.verifiers needs a list of {{kind, answer, options}}, not nested")
    return [
        find(str(entry["kind"]))(
            completion,
            replace(
                sample,
                kind=str(entry["kind"]),
                answer=str(entry.get("answer", sample.answer)),
                options=entry.get("options", {}),
            ),
        )
        for entry in entries
    ]
