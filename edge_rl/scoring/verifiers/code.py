"""A program that must pass unit tests. Knows no sandbox: an interpreter arrives as an argument."""

import re
from collections.abc import Sequence

from edge_rl.errors import DataError
from edge_rl.scoring.candidates import run_tests
from edge_rl.scoring.extraction import REASONING_CLOSE
from edge_rl.types import Interpreter, Sample, Verdict

BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def judge_code(completion: str, sample: Sample, run_code: Interpreter) -> Verdict:
    """Return whether the program in the completion passes the sample's tests.

    The program is the last fenced block that defines something, else the text itself. Tests are `sample.tests`
    (statements), or options["test"] (source) with options["entry_point"] for a `check(candidate)`. Other options: setup
    (source before the tests), prefix (source before the program, as in completion tasks).
    Raises: DataError if there are no tests; SandboxError where no session can be had.
    """
    tests = _tests(sample)
    program = find_program(completion)
    if not program.strip():
        return Verdict(correct=False, reason="no program", route="no_answer")
    prefix = str(sample.options.get("prefix", ""))
    entry_point = str(sample.options.get("entry_point", ""))
    if prefix and (not entry_point or not re.search(rf"^def {re.escape(entry_point)}\b", program, re.MULTILINE)):
        program = prefix + program
    result = run_tests(program, tests, run_code, reference=sample.answer)
    return Verdict(correct=result.passed, reason=result.reason, route="unit_tests")


def find_program(completion: str) -> str:
    """Return the program of a completion: the last fenced block with a definition, else the last block, else the text."""
    text = REASONING_CLOSE.split(completion)[-1]
    blocks = BLOCK.findall(text)
    defining = [block for block in blocks if re.search(r"^\s*(?:def|class)\s", block, re.MULTILINE)]
    if blocks:
        return (defining or blocks)[-1]
    return "" if "```" in text else text


def _tests(sample: Sample) -> Sequence[str]:
    setup = str(sample.options.get("setup", ""))
    source = str(sample.options.get("test", ""))
    parts = [part for part in (setup, source, *sample.tests) if part.strip()]
    if source and "entry_point" in sample.options:
        parts.append(f"check({sample.options['entry_point']})")
    if not source and not sample.tests:
        raise DataError(f"sample {sample.id}: kind code needs tests, such as 'assert f(1) == 2'")
    return parts
