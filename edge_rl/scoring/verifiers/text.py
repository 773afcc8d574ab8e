"""A word or a phrase, spelling apart. Knows no meaning."""

from edge_rl.errors import DataError
from edge_rl.scoring.extraction import commit
from edge_rl.scoring.wording import commits_to_words, plain_words
from edge_rl.types import Sample, Verdict


def judge_text(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion commits to the gold wording: case, spacing, marks and a leading article apart.

    Options: accept (other wordings that are right), case_sensitive (False).
    Raises: DataError if the gold answer holds no letter or digit.
    """
    accepted = [sample.answer, *sample.options.get("accept", ())]
    if not all(plain_words(word) for word in accepted):
        raise DataError(f"sample {sample.id}: answer {sample.answer[:80]!r} holds no word")
    commitment = commit(completion)
    if commitment.route == "nothing":
        return Verdict(correct=False, reason=commitment.reason, route="no_answer")
    same = commits_to_words(commitment, accepted, case_sensitive=bool(sample.options.get("case_sensitive", False)))
    return Verdict(correct=same, reason="the same words" if same else "other words", route="words")
