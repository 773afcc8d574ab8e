"""Write data_seeds/tool_math.jsonl. Deterministic: run it again and the bytes are the same.

    python data_seeds/build_tool_math.py

The wordings stand in edge_rl/data/wordings.py, the computations in edge_rl/data/tasks.py, the traces and hints here.
"""

import sys
from pathlib import Path

from edge_rl.data.seeds import save_samples
from edge_rl.data.tasks import WORDINGS, Problem, Wording, draw_problem
from edge_rl.types import Author, Hint, HintKind, Sample, Split, TraceSegment, derive_seed

SEED = 2026
TARGET = Path(__file__).with_name("tool_math.jsonl")
COUNTS = {"plain": 100, "validation": 60, "test": 200}
SPLITS = {"hinted": Split.TRAIN, "plain": Split.TRAIN, "validation": Split.VALIDATION, "test": Split.TEST}


EXPRESSIONS: dict[str, str] = {
    "product": "{a} * {b} =",
    "price": "{a} * {p} =",
    "product_add": "{a} * {b} + {c} =",
    "sum_list": "{a} + {b} + {c} + {d} =",
    "remainder": "{a} % {b} =",
    "power": "{a} ** {b} =",
    "percent": "{a} * {b} / 100 =",
    "days": "{d2}.{m2}. - {d1}.{m1}. =",
    "count_multiples": "Multiples of {c} from {a} to {b}:",
    "sum_range": "{a} + ... + {b} =",
}
"""Form -> how a hand computation of it begins; `{a}` stands for a drawn value. The forms of the task."""
TRACES = {
    "product": (2, 2),
    "price": (1, 1),
    "product_add": (2, 1),
    "sum_list": (2, 1),
    "remainder": (2, 1),
    "power": (3, 0),
    "percent": (2, 1),
    "days": (2, 1),
    "count_multiples": (2, 1),
    "sum_range": (2, 1),
}
"""Form -> traces with a delayed_code hint and with a distrust_result hint, each on a wording of its own."""

DELAYED_CODE_HINTS = (" ... long by hand, so Python:\n", " ... Python is quicker:\n")
DISTRUST_RESULT_HINTS = (" ... no need, Python is exact.\n", " ... no, the output is right.\n")


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
    hinted = _plan_hinted()
    plan: list[tuple[str, Wording, HintKind | None]] = [("hinted", *item) for item in hinted]
    traced = {wording.id for wording, _ in hinted}
    for pool, count in COUNTS.items():
        wordings = [item for item in WORDINGS[pool] if item.form in EXPRESSIONS and item.id not in traced]
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
    expression = EXPRESSIONS[problem.wording.form].format(**problem.values)
    out = printed_result(problem)
    code = f"```python\n{problem.code}\n```"
    tool = f"\n```output\n{out}\n```\n"
    close = f"The answer is \\boxed{{{out}}}."
    if kind is HintKind.DELAYED_CODE:
        policy, position, ending = expression + code, len(expression), close
        text = DELAYED_CODE_HINTS[index % len(DELAYED_CODE_HINTS)]
    else:
        policy = f"By code.\n{code}"
        doubt = f"By hand: {expression}"
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
    for form, (num_delayed, num_distrust) in TRACES.items():
        wordings = [wording for pool in ("hinted", "plain") for wording in WORDINGS[pool] if wording.form == form]
        delayed += [(wording, HintKind.DELAYED_CODE) for wording in wordings[:num_delayed]]
        distrust += [
            (wording, HintKind.DISTRUST_RESULT) for wording in wordings[num_delayed : num_delayed + num_distrust]
        ]
    return delayed + distrust


if __name__ == "__main__":
    sys.exit(main())
