"""Words that must, or must not, occur. Knows no meaning and no order."""

import re

from edge_rl.errors import DataError
from edge_rl.scoring.expressions.characters import clean_text
from edge_rl.scoring.extraction import visible_answer
from edge_rl.types import Sample, Verdict


def judge_keywords(completion: str, sample: Sample) -> Verdict:
    """Return whether the wanted words occur as whole words, case apart.

    The gold answer lists them with commas, or options["keywords"] does. Options: mode ("all", the default, or "any"),
    forbidden (words that make it wrong).
    Raises: DataError if there is no word or the mode is unknown.
    """
    words = [str(word) for word in sample.options.get("keywords", [part.strip() for part in sample.answer.split(",")])]
    mode = sample.options.get("mode", "all")
    if mode not in ("all", "any") or not words or not all(words):
        raise DataError(f"sample {sample.id}: needs keywords and mode all or any, has {words[:5]} and {mode!r}")
    text = clean_text(visible_answer(completion) or "").casefold()
    found = [word for word in words if _occurs(word, text)]
    banned = [word for word in sample.options.get("forbidden", ()) if _occurs(word, text)]
    if banned:
        return Verdict(correct=False, reason=f"has the forbidden {banned[0]!r}", route="keywords")
    right = len(found) == len(words) if mode == "all" else bool(found)
    return Verdict(correct=right, reason=f"{len(found)} of {len(words)} words", route="keywords")


def _occurs(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(clean_text(word).casefold())}(?!\w)", text) is not None
