"""A JSON value against a gold value and a schema. Knows no prose around it."""

import re
from collections.abc import Mapping
from typing import Any, cast

from edge_rl.errors import DataError
from edge_rl.scoring.extraction import LEAD_CHARS, commit, visible_answer
from edge_rl.scoring.statements import is_negated
from edge_rl.scoring.structured import NOTHING, last_json, read_json, same_value, schema_problem
from edge_rl.types import Sample, Verdict

FENCE = re.compile(r"```[ \t]*(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)


def judge_json(completion: str, sample: Sample) -> Verdict:
    """Return whether the last JSON value of the completion equals the gold answer and fits options["schema"].

    Options: schema (a subset of JSON Schema), mode ("exact", the default; "subset": more keys than the gold's are right).
    An empty gold answer leaves the schema alone to decide.
    Raises: DataError if the gold answer is no JSON, or there is neither gold nor schema.
    """
    schema, mode = sample.options.get("schema"), sample.options.get("mode", "exact")
    if mode not in ("exact", "subset") or not (sample.answer.strip() or schema):
        raise DataError(f"sample {sample.id}: needs a JSON answer or a schema, and mode exact or subset")
    gold: Any = NOTHING
    if sample.answer.strip():
        try:
            gold = read_json(sample.answer)
        except ValueError as error:
            raise DataError(f"sample {sample.id}: the answer is no JSON: {error}") from None
    value = _offered(completion)
    if value is NOTHING:
        return Verdict(correct=False, reason="no JSON value", route="no_answer")
    problem = schema_problem(value, schema) if schema else None
    if problem is not None:
        return Verdict(correct=False, reason=problem, route="schema")
    if gold is NOTHING:
        return Verdict(correct=True, reason="fits the schema", route="schema")
    same = _contains(value, gold) if mode == "subset" else same_value(value, gold)
    return Verdict(correct=same, reason="the same value" if same else "another value", route="value")


def _offered(completion: str) -> Any:
    """Return the value that a completion consists of, marks, or ends with; NOTHING where it commits to none."""
    text = visible_answer(completion) or ""
    for pattern in (FENCE, TAG):
        if parts := pattern.findall(text):
            try:
                return read_json(parts[-1].strip())
            except ValueError:
                return NOTHING
    try:
        return read_json(text.strip())
    except ValueError:
        pass  # prose around a value: the rules of commitment decide
    commitment = commit(completion)
    if commitment.route == "box":
        try:
            return read_json(commitment.values[0]) if len(commitment.values) == 1 else NOTHING
        except ValueError:
            return NOTHING
    if commitment.route == "nothing" and "\\boxed" in text:
        return NOTHING
    stripped = text.rstrip(" .\n")
    start = max(stripped.rfind("\n{"), stripped.rfind("\n["), stripped.find("{"), stripped.find("["))
    if not stripped.endswith(("}", "]")) or is_negated(stripped[max(0, start - LEAD_CHARS) : start]):
        return NOTHING
    return last_json(stripped)


def _contains(value: Any, gold: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(gold, Mapping):
        given, wanted = cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", gold)
        return all(key in given and _contains(given[key], part) for key, part in wanted.items())
    return same_value(value, gold)
