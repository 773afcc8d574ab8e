"""Numbers by exact value. Knows only text: no float, no eval."""

import re
from fractions import Fraction

from edge_rl.errors import DataError
from edge_rl.types import Sample, Verdict

NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,4000})(?:\.\d{1,4000})?(?:/\d{1,4000})?")


def judge_numeric(completion: str, sample: Sample) -> Verdict:
    r"""Return whether the last complete \boxed{} holds the gold number, within options["tolerance"] (default 0).

    Raises: DataError if the gold answer or the tolerance is no number.
    """
    gold = read_number(sample.answer)
    tolerance = read_number(str(sample.options.get("tolerance", 0)))
    if gold is None or tolerance is None or tolerance < 0:
        raise DataError(f"sample {sample.id}: answer {sample.answer!r} or its tolerance is not a number")
    box = last_box(completion)
    if box is None:
        return Verdict(correct=False, reason="no complete \\boxed{} in the completion", route="no_answer")
    value = read_number(box)
    if value is None:
        return Verdict(correct=False, reason=f"{box[:60]!r} is not a number", route="exact_number")
    return Verdict(
        correct=abs(value - gold) <= tolerance, reason=f"{box[:60]!r} against {sample.answer[:60]!r}", route="exact_number"
    )


def last_box(completion: str) -> str | None:
    r"""Return what stands in the last \boxed{}; None where there is none or the last one is cut off."""
    start = completion.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin, len(completion)):
        if completion[place] == "{":
            depth += 1
        elif completion[place] == "}":
            if depth == 0:
                return completion[begin:place]
            depth -= 1
    return None


def read_number(text: str) -> Fraction | None:
    """Return the exact value of a plain number, with or without thousands separators; None if it is none."""
    plain = text.strip().replace("\\$", "").replace("$", "").replace("\\,", "").replace("{,}", ",").strip(" .")
    if not NUMBER.fullmatch(plain):
        return None
    numerator, _, denominator = plain.replace(",", "").partition("/")
    if denominator and not int(denominator):
        return None
    return Fraction(numerator) / int(denominator or 1)
