"""A set of real numbers: intervals, inequalities, unions. Knows no finite lists except as points."""

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.answers import drop_label
from edge_rl.scoring.expressions.intervals import Interval, same_intervals, to_intervals
from edge_rl.scoring.expressions.nodes import ExpressionError, Node
from edge_rl.scoring.extraction import commit
from edge_rl.scoring.readings import parse_or_none, read
from edge_rl.scoring.wording import plain_words
from edge_rl.types import Sample, Verdict

ALL_REALS = frozenset(["all real numbers", "all reals", "real numbers", "every real number", "reals", "全体实数"])


def judge_interval(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to the same set of numbers, open and closed ends included.

    Raises: DataError if the gold answer is no such set.
    """
    node = parse_or_none(sample.answer, thousands=False)
    gold = None if node is None else _intervals(node)
    if gold is None:
        raise DataError(f"sample {sample.id}: answer {sample.answer[:80]!r} is no interval; write (0, 1] or x > 2")
    commitment = commit(completion)
    texts = [
        *commitment.values,
        *([commitment.statement.value or commitment.statement.sentence] if commitment.statement else []),
    ]
    if texts and all(plain_words(text) in ALL_REALS for text in texts):
        everything = _intervals(Node("named", "R"))
        assert everything is not None
        return _verdict(same_intervals(gold, everything).equal)
    reading = read(commitment, thousands=False)
    if not reading.nodes:
        return Verdict(correct=False, reason=reading.problem, route="no_answer")
    outcomes: list[bool | None] = []
    for given in reading.nodes:
        intervals = _intervals(given) or _intervals(drop_label(given))
        outcomes.append(False if intervals is None else same_intervals(gold, intervals).equal)
    return _verdict(outcomes[0] if len(set(outcomes)) == 1 else False)


def _verdict(equal: bool | None) -> Verdict:
    reason = {True: "the same set", False: "another set", None: "an end could not be compared"}[equal]
    return Verdict(correct=equal, reason=reason, route="interval")


def _intervals(node: Node) -> list[Interval] | None:
    try:
        return to_intervals(node)
    except ExpressionError:
        return None
