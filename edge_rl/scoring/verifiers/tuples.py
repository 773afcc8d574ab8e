"""An ordered list of values: a point, a vector, a sequence. Knows no sets."""

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.answers import drop_label, same_answer
from edge_rl.scoring.expressions.equality import same_in_order
from edge_rl.scoring.expressions.nodes import Node
from edge_rl.scoring.extraction import commit
from edge_rl.scoring.readings import parse_or_none, read
from edge_rl.types import Sample, Verdict


def judge_tuple(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to the gold values in their order; the shape of the brackets does not matter.

    Raises: DataError if the gold answer is no tuple.
    """
    gold = _parts(parse_or_none(sample.answer, thousands=False))
    if gold is None:
        raise DataError(f"sample {sample.id}: answer {sample.answer[:80]!r} is no tuple; write (1, 2)")
    reading = read(commit(completion), thousands=False)
    if not reading.nodes:
        return Verdict(correct=False, reason=reading.problem, route="no_answer")
    outcomes: list[bool | None] = []
    for node in reading.nodes:
        parts = _parts(drop_label(node))
        outcomes.append(False if parts is None else same_in_order(gold, parts, same_answer).equal)
    correct = outcomes[0] if len(set(outcomes)) == 1 else False
    reason = {True: "the same values in the same order", False: "other values or another order", None: "undecided"}[
        correct
    ]
    return Verdict(correct=correct, reason=reason, route="in_order")


def _parts(node: Node | None) -> tuple[Node, ...] | None:
    if node is None:
        return None
    if node.op == "group" or (node.op == "list" and node.name == ","):
        return tuple(drop_label(part) for part in node.args)
    if node.op == "matrix" and all(len(row.args) == 1 for row in node.args):
        return tuple(row.args[0] for row in node.args)
    if node.op == "matrix" and len(node.args) == 1:
        return node.args[0].args
    return None
