"""One option of several, by its letter. Knows no mathematics."""

import re

from edge_rl.errors import DataError
from edge_rl.scoring.extraction import commit
from edge_rl.scoring.wording import chosen_letters, plain_words
from edge_rl.types import Sample, Verdict


def judge_choice(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to the gold letter and no other.

    Options: choices (letter -> text of the option), so that the option's full text counts as its letter.
    Raises: DataError if the gold answer is no letter.
    """
    gold = plain_words(sample.answer, case_sensitive=True).strip("()").upper()
    if not re.fullmatch(r"[A-Z]", gold):
        raise DataError(f"sample {sample.id}: answer {sample.answer[:80]!r} is no option letter; write A, B, ...")
    letters = chosen_letters(commit(completion), sample.options.get("choices", {}))
    if not letters:
        return Verdict(correct=False, reason="no option was chosen", route="no_answer")
    if len(letters) > 1:
        return Verdict(correct=False, reason=f"{len(letters)} options are offered", route="several_values")
    return Verdict(correct=letters == {gold}, reason=f"chose {next(iter(letters)) or 'no letter'}", route="letter")
