"""Write data_seeds/tool_math.jsonl. Deterministic: run it again and the bytes are the same.

    python data_seeds/build_tool_math.py

The wordings stand in edge_rl/data/wordings.py, the computations in edge_rl/data/tasks.py, the traces and hints here.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_rl.data.seeds import save_samples
from edge_rl.data.tasks import MONTHS, WORDINGS, Problem, Wording, draw_problem
from edge_rl.types import Author, Hint, HintKind, Sample, Split, TraceSegment, derive_seed

SEED = 2026
TARGET = Path(__file__).with_name("tool_math.jsonl")
COUNTS = {"plain": 100, "validation": 60, "test": 200}
SPLITS = {"hinted": Split.TRAIN, "plain": Split.TRAIN, "validation": Split.VALIDATION, "test": Split.TEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the traces of one hinted wording say; `{a}` stands for a drawn value, `{month1}` for the name of m1."""

    start: str
    """Begins the hand computation that a delayed_code hint cuts short."""
    plan: str = ""
    """Leads straight to the code, in traces with a distrust_result hint."""
    doubt: str = ""
    """Doubts the printed result, until a distrust_result hint settles it."""
    close: str
    """Begins the last sentence, which ends in the box."""


SCRIPTS: dict[str, Script] = {
    "product": Script(
        start="{a} times {b} is", plan="{a} times {b}.", doubt="Let me recheck {a} times {b}:", close="The answer is"
    ),
    "product_add": Script(
        start="{a} times {b} is",
        plan="{a} times {b}, plus {c}.",
        doubt="Is that right? {a} times {b} is",
        close="In total that is",
    ),
    "leftover": Script(
        start="{b} times {c} is",
        plan="{a} minus {b} times {c}.",
        doubt="By hand, {b} times {c} is",
        close="What remains is",
    ),
    "sum_list": Script(
        start="{a} plus {b} is",
        plan="{a} plus {b} plus {c} plus {d}.",
        doubt="Adding again, {a} and {b} give",
        close="Altogether that is",
    ),
    "remainder": Script(
        start="{b} goes into {a}",
        plan="The remainder of {a} by {b}.",
        doubt="Wait, {b} times what is that?",
        close="Left over:",
    ),
    "power": Script(start="{a} times {a} is", close="The exact value is"),
    "percent": Script(
        start="One percent of {a} is",
        plan="{a} times {b} over 100.",
        doubt="Can that be? Half of {a} is",
        close="In euros that is",
    ),
    "unit_price": Script(
        start="{c} over {b} is",
        plan="{a} times {c} over {b}.",
        doubt="Is that the price? {c} over {b} is",
        close="The cost is",
    ),
    "days": Script(
        start="{month1} has",
        plan="Later date minus earlier date.",
        doubt="Let me count again from {month1}:",
        close="The answer is",
    ),
    "count_multiples": Script(
        start="The first multiple of {c} is",
        plan="Count each n that {c} divides.",
        doubt="Let me list them to be sure:",
        close="There are",
    ),
    "sum_range": Script(
        start="{a} plus the next number is",
        plan="Sum of each n from {a} to {b}.",
        doubt="Let me add the first ones:",
        close="The sum is",
    ),
}

FORMS_OF_TASK = (*SCRIPTS, "price", "rate")
"""Computations of the task: those with traces, and two that differ from one of them in their numbers only."""
TRACES = {HintKind.DELAYED_CODE: 2, HintKind.DISTRUST_RESULT: 1}
"""Traces of a form, each on a wording of its own; the rule, to which the next two are the exceptions."""
ONE_OF_EACH = ("unit_price", "sum_range")
DELAYED_ONLY = ("power",)

DELAYED_CODE_HINTS = (
    " ... slow by hand, so I run it.\n",
    " ... no, Python is quicker.\n",
    " ... better in code:\n",
    " ... let Python do it.\n",
    " ... easy to slip, so code:\n",
    " ... too long, I run it.\n",
)
DISTRUST_RESULT_HINTS = (
    " ... no need, it is exact.\n",
    " ... no, Python is exact.\n",
    " ... not needed, it was computed.\n",
    " ... the output is right.\n",
    " ... I trust the result.\n",
)


def main() -> int:
    """Write the file."""
    save_samples(build_samples(), TARGET)
    sys.stdout.write(f"wrote {TARGET}\n")
    return 0


def build_samples() -> list[Sample]:
    """Return the samples of all splits, in order."""
    samples: list[Sample] = []
    num_kind = {HintKind.DELAYED_CODE: 0, HintKind.DISTRUST_RESULT: 0}
    for sample_id, pool, problem, kind in build_problems():
        trace: tuple[TraceSegment, ...] = ()
        hints: tuple[Hint, ...] = ()
        if kind is not None:
            trace, hints = write_trace(problem, kind, num_kind[kind])
            num_kind[kind] += 1
        samples.append(
            Sample(
                id=sample_id,
                question=problem.question,
                answer=problem.answer,
                tools=("python",),
                trace=trace,
                hints=hints,
                split=SPLITS[pool],
                tags=(pool, f"skill:{problem.wording.skill}", f"wording:{problem.wording.id}"),
                source="written for edge_rl",
                licence="Apache-2.0",
            )
        )
    return samples


def build_problems() -> list[tuple[str, str, Problem, HintKind | None]]:
    """Return (sample id, pool, problem, kind of its hint) of every sample; no two problems share their numbers."""
    plan: list[tuple[str, Wording, HintKind | None]] = [("hinted", *item) for item in _plan_hinted()]
    for pool, count in COUNTS.items():
        wordings = [wording for wording in WORDINGS[pool] if wording.form in FORMS_OF_TASK]
        plan.extend((pool, wordings[index % len(wordings)], None) for index in range(count))
    taken: set[tuple[str, ...]] = set()
    num_in_pool: dict[str, int] = {}
    problems: list[tuple[str, str, Problem, HintKind | None]] = []
    for index, (pool, wording, kind) in enumerate(plan):
        attempt = 0
        problem = draw_problem(wording, derive_seed(SEED, index, attempt))
        while _digits(problem) in taken:
            attempt += 1
            problem = draw_problem(wording, derive_seed(SEED, index, attempt))
        taken.add(_digits(problem))
        num_in_pool[pool] = num_in_pool.get(pool, 0) + 1
        problems.append((f"tool-math-{pool}-{num_in_pool[pool]:03d}", pool, problem, kind))
    return problems


def _digits(problem: Problem) -> tuple[str, ...]:
    """Return the numbers of the question without order; months do not tell two questions apart."""
    return tuple(sorted(text for text in problem.numbers if text[0].isdigit()))


def write_trace(problem: Problem, kind: HintKind, index: int) -> tuple[tuple[TraceSegment, ...], tuple[Hint, ...]]:
    """Return the hint-free trace of a hinted problem and its one hint; `index` picks the hint's words."""
    script = SCRIPTS[problem.wording.form]
    out = printed_result(problem)
    words: dict[str, Any] = dict(problem.values)
    if "m1" in problem.values:
        words["month1"] = MONTHS[problem.values["m1"] - 1]
    code = f"```python\n{problem.code}\n```"
    tool = f"\n```output\n{out}\n```\n"
    close = f"{script.close} \\boxed{{{out}}}."
    if kind is HintKind.DELAYED_CODE:
        start = script.start.format(**words)
        policy, position, ending = start + code, len(start), close
        text = DELAYED_CODE_HINTS[index % len(DELAYED_CODE_HINTS)]
    else:
        policy = f"{script.plan.format(**words)}\n{code}"
        doubt = script.doubt.format(**words)
        position, ending = len(policy) + len(tool) + len(doubt), doubt + close
        text = DISTRUST_RESULT_HINTS[index % len(DISTRUST_RESULT_HINTS)]
    trace = (
        TraceSegment(author=Author.POLICY, text=policy),
        TraceSegment(author=Author.TOOL, text=tool),
        TraceSegment(author=Author.POLICY, text=ending),
    )
    return trace, (Hint(kind=kind, text=text, position=position),)


def printed_result(problem: Problem) -> str:
    """Return what the problem's code prints: a division prints a float even where the answer is whole."""
    is_float = "/" in problem.code.replace("//", "")
    return f"{problem.answer}.0" if is_float and "." not in problem.answer else problem.answer


def _plan_hinted() -> list[tuple[Wording, HintKind]]:
    """Return 20 wordings with a delayed_code hint and 10 with a distrust_result hint: no wording has two traces."""
    delayed: list[tuple[Wording, HintKind]] = []
    distrust: list[tuple[Wording, HintKind]] = []
    for form in SCRIPTS:
        wordings = [wording for pool in ("hinted", "plain") for wording in WORDINGS[pool] if wording.form == form]
        num_delayed = 1 if form in ONE_OF_EACH else TRACES[HintKind.DELAYED_CODE]
        delayed += [(wording, HintKind.DELAYED_CODE) for wording in wordings[:num_delayed]]
        if form not in DELAYED_ONLY:
            distrust.append((wordings[num_delayed], HintKind.DISTRUST_RESULT))
    return delayed + distrust


if __name__ == "__main__":
    sys.exit(main())
