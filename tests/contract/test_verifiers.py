"""Every verifier accepts its gold, rejects what does not commit, never raises, and answers in time."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_rl.sandbox import make_interpreter
from edge_rl.scoring.pool import warm_pool
from edge_rl.scoring.scorer import gold_completion, judge_text
from edge_rl.scoring.verifiers import verifier_names
from edge_rl.scoring.workbench import load_cases, mutate_gold, run_cases
from edge_rl.types import Interpreter, Sample

DATA = Path(__file__).parents[1] / "data"
THIRD_PARTY = Path(os.environ.get("EDGE_RL_DATA", "../shared/data"))
LIMIT_S = 1.5
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "dict",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}


def sample(kind: str, answer: str, tests: tuple[str, ...] = (), **options: Any) -> Sample:
    return Sample(id=f"case-{kind}", question="a question", answer=answer, kind=kind, options=options, tests=tests)


SAMPLES = [
    sample("numeric", "17"),
    sample("numeric", "3.14", tolerance="0.01"),
    sample("math", r"\frac{\sqrt{2}}{2}"),
    sample("math", r"(3,\frac{\pi}{2})"),
    sample("set", r"\{1,2\}"),
    sample("tuple", "(1,2)"),
    sample("interval", "(0,1]"),
    sample("choice", "B", choices={"A": "12", "B": "24"}),
    sample("text", "isosceles"),
    sample("regex", r"[A-Z]{2}\d{3}", example=r"\boxed{AB123}"),
    sample("keywords", "cat, dog"),
    sample("json", '{"a": [1, 2.5], "b": null}'),
    sample("tool_call", '[{"weather": {"city": ["Rome"], "days": [2, ""]}}]', tools=[WEATHER]),
    sample(
        "constraints",
        "",
        constraints=[{"id": "punctuation:no_comma"}, {"id": "detectable_format:title"}],
        example="<<Rome>> No comma here.",
    ),
    sample("code", "def double(x):\n    return 2 * x", tests=("assert double(2) == 4", "assert double('a') == 'aa'")),
    sample("code-output", "1 2\n3\n"),
    sample("python", "7", file=str(DATA / "user_verifier.py"), example="I say seven: 7"),
    sample("all_of", "17", verifiers=[{"kind": "numeric"}, {"kind": "math"}], example=r"\boxed{17}"),
    sample("vote", "17", verifiers=[{"kind": "numeric"}, {"kind": "math"}, {"kind": "text"}], example=r"\boxed{17}"),
]


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    warm_pool()
    return make_interpreter()


@pytest.mark.parametrize("case", SAMPLES, ids=lambda case: case.kind)
def test_verifier_accepts_its_gold_and_rejects_the_empty_text(case: Sample, interpreter: Interpreter) -> None:
    completion = gold_completion(case)
    assert completion is not None
    assert judge_text(completion, case, interpreter).correct is True
    assert judge_text("", case, interpreter).correct is False
    assert judge_text(" \n", case, interpreter).correct is False


# A program is judged in unit/scoring/test_candidates.py; what a user's function accepts is the user's.
@pytest.mark.parametrize(
    "case", [case for case in SAMPLES if case.kind not in ("code", "python")], ids=lambda case: case.kind
)
def test_verifier_accepts_no_mutation_of_its_gold(case: Sample, interpreter: Interpreter) -> None:
    report = run_cases(mutate_gold(case), interpreter)
    assert report.num_cases == 200
    assert [item.case.completion for item in report.false_accepts] == []


@pytest.mark.parametrize("case", [case for case in SAMPLES if case.kind != "code"], ids=lambda case: case.kind)
def test_verifier_never_raises_and_repeats_itself(case: Sample, interpreter: Interpreter) -> None:
    generator = random.Random(0)
    pieces = [
        *"0123456789{}()[]\\$^_|,.;:=<>+-*/!% \n",
        r"\boxed{",
        "####",
        "<answer>",
        "</answer>",
        r"\frac",
        r"\sqrt",
        "```",
    ]
    for _ in range(40):
        text = "".join(generator.choices(pieces, k=generator.randint(1, 60)))
        start = time.perf_counter()
        first = judge_text(text, case, interpreter)
        assert time.perf_counter() - start < LIMIT_S
        assert judge_text(text, case, interpreter) == first
        assert first.route != "verifier_failed", first.reason


def test_every_kind_has_a_sample_here() -> None:
    assert {case.kind for case in SAMPLES} == set(verifier_names())


@pytest.mark.parametrize("name", ["answers.jsonl", "answers_more.jsonl"])
def test_labelled_cases_are_all_right(name: str) -> None:
    report = run_cases(load_cases(DATA / name))
    rows = [*report.false_accepts, *report.false_rejects, *report.unjudged]
    assert [(row.case.sample.id, row.verdict) for row in rows] == []


HOSTILE = [
    r"\boxed{9^{9^{9^{9^{9}}}}}",
    r"\boxed{((9!)!)!}",
    r"\boxed{" + r"\sqrt{" * 400 + "2" + "}" * 401,
    r"\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
    r"\boxed{" * 8000,
    "{" * 60_000 + r"\boxed{8}",
    "<answer>" * 8000 + "</answer>",
    " " * 60_000 + "x",
    "answer is " * 6000,
    "no, " * 15_000,
    "1," * 30_000,
    r"\boxed{" + "1" * 60_000 + "}",
    r"\boxed{" + "sin" * 20_000 + "}",
    r"\boxed{e^{e^{e^{e^{e^{e}}}}}}",
    r"\boxed{\sin(10^{50})^{10^{50}}}",
    '"' * 60_000,
    "[" * 30_000,
    "-" * 30_000 + "1",
    '{"a":' * 10_000,
]


@pytest.mark.parametrize("kind", ["numeric", "math", "set", "interval", "text", "choice", "json", "tool_call", "tuple"])
def test_hostile_texts_are_wrong_and_quick(kind: str) -> None:
    warm_pool()
    case = next(case for case in SAMPLES if case.kind == kind)
    for text in HOSTILE:
        start = time.perf_counter()
        verdict = judge_text(text, case)
        assert verdict.correct is not True, text[:40]
        assert time.perf_counter() - start < LIMIT_S, text[:40]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=200))
def test_any_text_is_judged(text: str) -> None:
    for kind in ("numeric", "math", "set", "interval", "text", "choice"):
        case = next(case for case in SAMPLES if case.kind == kind)
        assert judge_text(text, case).route != "verifier_failed"


NUMBERS = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.tuples(st.integers(-999, 999), st.integers(1, 99)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    st.decimals(-100, 100, places=2).map(str),
    st.integers(1, 50).map(lambda value: rf"\sqrt{{{value}}}"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NUMBERS, NUMBERS)
def test_equality_is_symmetric_and_reflexive(left: str, right: str) -> None:
    def verdict(gold: str, given_value: str) -> bool | None:
        return judge_text(rf"\boxed{{{given_value}}}", sample("math", gold)).correct

    assert verdict(left, left) is True
    assert verdict(left, right) == verdict(right, left)


def golds() -> list[tuple[str, str, str, dict[str, Any]]]:
    rows: list[tuple[str, str, str, dict[str, Any]]] = []
    for name in ("aime24", "aime25", "amc23", "math500"):
        kind = "math" if name == "math500" else "numeric"
        for line in (THIRD_PARTY / name / "test.jsonl").read_text(encoding="utf-8").splitlines():
            rows.append((name, kind, json.loads(line)["gt_answer"], {}))
    for line in (THIRD_PARTY / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines():
        rows.append(("gsm8k", "numeric", json.loads(line)["answer"].split("####")[1].strip(), {}))
    for row in json.loads((THIRD_PARTY / "svamp" / "SVAMP.json").read_text(encoding="utf-8")):
        rows.append(("svamp", "numeric", str(row["Answer"]), {}))
    for name in ("live_simple", "multiple", "parallel", "parallel_multiple", "simple_python"):
        questions = (THIRD_PARTY / "bfcl" / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines()
        tools = {row["id"]: row["function"] for row in map(json.loads, questions)}
        for line in (THIRD_PARTY / "bfcl" / f"answer_BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows.append((f"bfcl_{name}", "tool_call", json.dumps(row["ground_truth"]), {"tools": tools[row["id"]]}))
    return rows


@pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason="third-party data is not here; set EDGE_RL_DATA")
def test_gold_answers_of_public_collections_verify_against_themselves() -> None:
    total: dict[str, int] = {}
    right: dict[str, int] = {}
    for name, kind, answer, options in golds():
        case = sample(kind, answer, **options)
        total[name] = total.get(name, 0) + 1
        right[name] = right.get(name, 0) + (judge_text(gold_completion(case) or "", case).correct is True)
    assert {name: share for name in total if (share := right[name] / total[name]) < 0.99} == {}


@pytest.mark.slow
@pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason="third-party data is not here; set EDGE_RL_DATA")
def test_reference_programs_pass_their_tests(interpreter: Interpreter) -> None:
    wrong: list[str] = []
    for row in json.loads((THIRD_PARTY / "mbpp_sanitized" / "sanitized-mbpp.json").read_text(encoding="utf-8")):
        case = sample("code", row["code"], tests=tuple(row["test_list"]), setup="\n".join(row["test_imports"]))
        if judge_text(gold_completion(case) or "", case, interpreter).correct is not True:
            wrong.append(f"mbpp {row['task_id']}")
    for line in (THIRD_PARTY / "humaneval" / "HumanEval.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        program = row["prompt"] + row["canonical_solution"]
        case = sample("code", program, test=row["test"], entry_point=row["entry_point"], prefix=row["prompt"])
        if judge_text(gold_completion(case) or "", case, interpreter).correct is not True:
            wrong.append(row["task_id"])
    assert len(wrong) <= 5, wrong
