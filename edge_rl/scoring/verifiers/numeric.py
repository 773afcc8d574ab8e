"""One number, by exact value or within a tolerance. Knows no symbols."""

from fractions import Fraction

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.answers import drop_label, same_answer
from edge_rl.scoring.expressions.equality import strip_unit, without_units
from edge_rl.scoring.expressions.exact import TooLargeError, rational_value
from edge_rl.scoring.expressions.nodes import ExpressionError, Node
from edge_rl.scoring.expressions.probing import constant_value
from edge_rl.scoring.extraction import commit
from edge_rl.scoring.readings import parse_or_none, read
from edge_rl.types import Sample, Verdict

CONTAINERS = frozenset(["group", "set", "list", "matrix", "ratio", "relation", "chain", "pm", "text", "named", "union"])


def judge_numeric(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to the gold number.

    Options: tolerance (largest absolute difference), relative_tolerance (largest share of the gold); both 0 by default.
    Raises: DataError if the gold answer or a tolerance is no number.
    """
    gold = parse_or_none(sample.answer)
    if gold is None or gold.op in CONTAINERS or _value(strip_unit(gold)) is None:
        raise DataError(f"sample {sample.id}: answer {sample.answer[:80]!r} is not a number; use kind math or text")
    tolerance = _tolerance(sample, gold)
    reading = read(commit(completion))
    if not reading.nodes:
        return Verdict(correct=False, reason=reading.problem, route="no_answer")
    verdicts = [_judge_one(gold, drop_label(node), tolerance) for node in reading.nodes]
    if len(verdicts) > 1 and not all(verdict.correct for verdict in verdicts):
        return Verdict(correct=False, reason=f"{len(verdicts)} different values are offered", route="several_values")
    return verdicts[0]


def _judge_one(gold: Node, given: Node, tolerance: Fraction) -> Verdict:
    if given.op in CONTAINERS:
        return Verdict(correct=False, reason=f"a {given.op} is no single number", route="several_values")
    stripped = without_units(gold, given)
    if stripped is None:
        return Verdict(correct=False, reason="another unit", route="unit")
    gold, given = stripped
    if tolerance:
        return _within(gold, given, tolerance)
    outcome = same_answer(gold, given)
    reason = {True: "equal", False: "different", None: "the comparison could not be decided"}[outcome.equal]
    return Verdict(correct=outcome.equal, reason=reason, route=outcome.route)


def _within(gold: Node, given: Node, tolerance: Fraction) -> Verdict:
    expected, value = _value(gold), _value(given)
    if expected is None or value is None:
        return Verdict(correct=False, reason="no number that can be compared", route="tolerance")
    close = abs(value - expected) <= tolerance
    return Verdict(correct=close, reason="within the tolerance" if close else "too far off", route="tolerance")


def _tolerance(sample: Sample, gold: Node) -> Fraction:
    parts: list[Fraction] = []
    for name in ("tolerance", "relative_tolerance"):
        node = parse_or_none(str(sample.options.get(name, 0)))
        value = None if node is None else _value(node)
        if value is None or value < 0:
            raise DataError(f"sample {sample.id}: {name} is {sample.options[name]!r}; expected a number from 0 up")
        parts.append(value)
    return max(parts[0], parts[1] * abs(_value(strip_unit(gold)) or 0))


def _value(node: Node) -> Fraction | None:
    try:
        exact = rational_value(node)
        if exact is not None or node.symbols():
            return exact
        # Only a tolerance looks at this value, and 30 digits are beyond any tolerance.
        return Fraction(str(constant_value(node)))
    except (TooLargeError, ExpressionError, ValueError):
        return None
