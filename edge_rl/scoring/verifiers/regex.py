"""A user's pattern over the answer or the whole completion. Knows no language; the match runs where it can be killed."""

import re

from edge_rl.errors import DataError
from edge_rl.scoring.extraction import commit, visible_answer
from edge_rl.scoring.pool import TaskTimeoutError, shared_pool
from edge_rl.types import Sample, Verdict

FLAGS = {"ignorecase": re.IGNORECASE, "multiline": re.MULTILINE, "dotall": re.DOTALL}
MAX_TEXT = 60_000


def judge_regex(completion: str, sample: Sample) -> Verdict:
    """Return whether the pattern in the gold answer matches.

    Options: on ("answer", the default: the committed value in full; "completion": anywhere), flags (names such as
    "ignorecase"), example (a text that matches, for the gold check).
    Raises: DataError if the pattern or an option is wrong.
    """
    on = sample.options.get("on", "answer")
    unknown = [name for name in sample.options.get("flags", ()) if name not in FLAGS]
    if on not in ("answer", "completion") or unknown:
        raise DataError(
            f"sample {sample.id}: on is {on!r}, flags {unknown}; use answer or completion, {', '.join(FLAGS)}"
        )
    flags = sum(FLAGS[name] for name in sample.options.get("flags", ()))
    try:
        re.compile(sample.answer, flags)
    except re.error as error:
        raise DataError(f"sample {sample.id}: pattern {sample.answer[:80]!r} is wrong: {error}") from None
    text = _text(completion, on)
    if not text:
        return Verdict(correct=False, reason="no answer to match", route="no_answer")
    payload = {
        "pattern": sample.answer,
        "flags": flags,
        "text": text[:MAX_TEXT],
        "mode": "full" if on == "answer" else "search",
    }
    try:
        found = bool(shared_pool().call("pattern", payload))
    except TaskTimeoutError:
        return Verdict(correct=None, reason="the pattern did not end in time; make it simpler", route="pattern")
    return Verdict(correct=found, reason="matches" if found else "does not match", route="pattern")


def _text(completion: str, on: str) -> str:
    if on == "completion":
        return (visible_answer(completion) or "").strip()
    commitment = commit(completion)
    if commitment.statement is not None:
        return commitment.statement.value or commitment.statement.sentence
    return commitment.values[0].strip() if len(commitment.values) == 1 else ""
