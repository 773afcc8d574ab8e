"""Mathematics in LaTeX or plain text: numbers, expressions, equations, points, matrices, lists. Knows no rounding."""

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.answers import same_answer
from edge_rl.scoring.expressions.nodes import Node
from edge_rl.scoring.extraction import Commitment, commit
from edge_rl.scoring.readings import parse_or_none, read
from edge_rl.scoring.wording import chosen_letters, commits_to_words, plain_words
from edge_rl.types import Sample, Verdict

REASONS = {True: "equal", False: "different", None: "the comparison could not be decided"}


def judge_math(completion: str, sample: Sample) -> Verdict:
    r"""Return whether the completion commits to an expression equal to the gold answer.

    A gold answer in words (\text{east}) or an option letter (\text{(C)}) is compared as such. A bare comma list has no
    order; brackets keep theirs.
    Raises: DataError if the gold answer is empty.
    """
    if not sample.answer.strip():
        raise DataError(f"sample {sample.id}: the answer is empty")
    gold = parse_or_none(sample.answer)
    is_many = gold is not None and gold.op == "list"
    commitment = commit(completion, many=is_many)
    if gold is None or gold.op == "text":
        return _judge_words(commitment, sample.answer)
    reading = read(commitment)
    if not reading.nodes:
        if commits_to_words(commitment, [sample.answer]):
            return Verdict(correct=True, reason="the same text", route="same_text")
        return Verdict(correct=False, reason=reading.problem, route="no_answer")
    if is_many and len(reading.nodes) > 1:
        reading_nodes: tuple[Node, ...] = (Node("list", ",", reading.nodes),)
    else:
        reading_nodes = reading.nodes
    outcomes = [same_answer(gold, node) for node in reading_nodes]
    if len(outcomes) > 1 and not all(outcome.equal for outcome in outcomes):
        return Verdict(correct=False, reason=f"{len(outcomes)} different values are offered", route="several_values")
    return Verdict(correct=outcomes[0].equal, reason=REASONS[outcomes[0].equal], route=outcomes[0].route)


def _judge_words(commitment: Commitment, answer: str) -> Verdict:
    words = plain_words(answer, case_sensitive=True)
    letter = words.strip("()")
    if len(letter) == 1 and letter.isalpha() and letter.isupper():
        letters = chosen_letters(commitment, {})
        return Verdict(
            correct=letters == {letter}, reason=f"chose {', '.join(sorted(letters)) or 'nothing'}", route="letter"
        )
    same = commits_to_words(commitment, [answer])
    return Verdict(correct=same, reason=REASONS[same], route="words")
