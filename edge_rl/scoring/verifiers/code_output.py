"""What a program printed against what it should print. Knows nothing of the program.

The completion is the output itself; trailing blanks of a line, line ends and blank lines at the end do not count, all else is
exact. Program output is not prose: nothing in it is normalised.
"""

from edge_rl.types import Sample, Verdict


def judge_code_output(completion: str, sample: Sample) -> Verdict:
    """Return whether the output is the expected one, line by line; an empty output is right only if nothing is expected."""
    expected, printed = _lines(sample.answer), _lines(completion)
    if expected == printed:
        return Verdict(
            correct=bool(expected), reason="the same output" if expected else "nothing was printed", route="lines"
        )
    if len(expected) != len(printed):
        return Verdict(correct=False, reason=f"{len(printed)} lines, expected {len(expected)}", route="lines")
    place = next(index for index, pair in enumerate(zip(expected, printed, strict=True)) if pair[0] != pair[1])
    return Verdict(correct=False, reason=f"line {place + 1} differs", route="lines")


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
