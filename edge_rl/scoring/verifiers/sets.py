"""A finite set: all elements and nothing else, in any order. Knows no intervals."""

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.answers import elements, same_answer
from edge_rl.scoring.expressions.equality import Outcome, same_elements
from edge_rl.scoring.expressions.nodes import ExpressionError, Node
from edge_rl.scoring.extraction import Commitment, commit
from edge_rl.scoring.readings import parse_or_none, read
from edge_rl.scoring.wording import plain_words
from edge_rl.types import Sample, Verdict

EMPTY_WORDS = frozenset(
    [
        "no solution",
        "no solutions",
        "no real solution",
        "no real solutions",
        "none",
        "empty set",
        "there are no solutions",
        "无解",
    ]
)
NOT_FINITE = frozenset(["intersection", "difference", "builder", "chain", "text"])


def judge_set(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to exactly the elements of the gold set; each may have its own box.

    Raises: DataError if the gold answer is no set.
    """
    gold = _elements_of(parse_or_none(sample.answer, thousands=False))
    if gold is None:
        raise DataError(
            f"sample {sample.id}: answer {sample.answer[:80]!r} is no finite set; write {{1, 2}} or \\emptyset"
        )
    commitment = commit(completion, many=True)
    if not gold and _says_empty(commitment):
        return Verdict(correct=True, reason="the empty set in words", route="words")
    problem = ""
    outcomes: list[Outcome] = []
    # "343,512" is a list and "1,000" is one number: a comma with three digits behind it is read both ways.
    for thousands in (False, True):
        reading = read(commitment, thousands=thousands)
        problem = problem or reading.problem
        parts = [_elements_of(node) for node in reading.nodes]
        if not parts or any(part is None for part in parts):
            continue
        given = [element for part in parts if part is not None for element in part]
        outcomes.append(same_elements(gold, given, same_answer))
    if not outcomes:
        return Verdict(correct=False, reason=problem or "no finite set", route="no_answer")
    best = next((outcome for outcome in outcomes if outcome.equal), outcomes[0])
    reason = {True: "the same elements", False: "other elements", None: "an element could not be compared"}[best.equal]
    return Verdict(correct=best.equal, reason=reason, route=best.route)


def _elements_of(node: Node | None) -> tuple[Node, ...] | None:
    if node is None or node.op in NOT_FINITE or (node.op == "named" and node.name != "empty"):
        return None
    try:
        found = elements(node)
    except ExpressionError:
        return None
    return None if any(element.op == "named" and element.name != "empty" for element in found) else found


def _says_empty(commitment: Commitment) -> bool:
    texts = list(commitment.values)
    if commitment.statement is not None:
        texts = [commitment.statement.value or "", commitment.statement.sentence]
    return any(plain_words(text) in EMPTY_WORDS for text in texts)
