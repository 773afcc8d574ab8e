"""The embedded task: what data_seeds/README.md says about data_seeds/tool_math.jsonl is true."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from edge_rl.data.hints import insert_hints, remove_hints
from edge_rl.data.seeds import load_samples, save_samples
from edge_rl.data.tasks import MONTHS
from edge_rl.types import Author, HintKind, Sample, Split

FOLDER = Path(__file__).parents[3] / "data_seeds"
FILE = FOLDER / "tool_math.jsonl"
RUNNER = """
import contextlib, io, json, sys
results = []
for code in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    results.append(out.getvalue().rstrip("\\n"))
print(json.dumps(results))
"""


@cache
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_tool_math", FOLDER / "build_tool_math.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def samples() -> tuple[Sample, ...]:
    return tuple(load_samples(FILE))


def hinted() -> list[Sample]:
    return [sample for sample in samples() if "hinted" in sample.tags]


def tag(sample: Sample, name: str) -> str:
    (value,) = [entry.removeprefix(f"{name}:") for entry in sample.tags if entry.startswith(f"{name}:")]
    return value


def run_all(codes: list[str]) -> list[str]:
    """Return what each code prints, from one fresh interpreter."""
    command = [sys.executable, "-I", "-c", RUNNER]
    done = subprocess.run(command, input=json.dumps(codes), capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def code_of(sample: Sample) -> str:
    match = re.search(r"```python\n(.*)\n```$", sample.trace[0].text, re.DOTALL)
    assert match is not None, sample.id
    return match.group(1)


def test_tool_math_is_what_its_builder_writes(tmp_path: Path) -> None:
    save_samples(builder().build_samples(), tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == FILE.read_bytes()


def test_tool_math_answers_are_what_their_solutions_print() -> None:
    problems = builder().build_problems()
    printed = run_all([problem.code for _, _, problem, _ in problems])
    gold = {sample.id: sample.answer for sample in samples()}
    assert [name for name, *_ in problems] == list(gold)
    for (name, *_), result in zip(problems, printed, strict=True):
        assert Decimal(result) == Decimal(gold[name]), name


def test_tool_math_trace_outputs_are_what_their_code_prints() -> None:
    printed = run_all([code_of(sample) for sample in hinted()])
    for sample, result in zip(hinted(), printed, strict=True):
        assert sample.trace[1].text == f"\n```output\n{result}\n```\n", sample.id
        assert Decimal(result) == Decimal(sample.answer)


def test_tool_math_traces_follow_the_token_protocol() -> None:
    for sample in hinted():
        call, tool, ending = sample.trace
        assert [call.author, tool.author, ending.author] == [Author.POLICY, Author.TOOL, Author.POLICY]
        before, after = insert_hints(sample.trace, sample.hints), remove_hints(insert_hints(sample.trace, sample.hints))
        assert after == (sample.trace, sample.hints)
        text = "".join(segment.text for segment in before)
        # The fence opens a line once the hint is in, so nothing but the hint-free text can be malformed.
        assert re.fullmatch(
            r"[^`]+\n```python\n(from datetime import date\n)?print\(.*\)\n```\n```output\n[\d.]+\n```\n"
            r"[^`]*\\boxed\{[\d.]+\}\.",
            text,
        ), text
        assert ending.text.count("\\boxed") == 1
        box = re.search(r"\\boxed\{([\d.]+)\}", ending.text)
        assert box is not None
        assert tool.text.split("\n")[2] == box.group(1)


def test_tool_math_traces_state_nothing_that_only_running_can_tell() -> None:
    for sample in hinted():
        before_output = sample.trace[0].text.split("```")[0] + "".join(hint.text for hint in sample.hints)
        months = " ".join(str(number) for number, month in enumerate(MONTHS, start=1) if month in sample.question)
        plain = re.sub(r"(\.\d*?)0+\b", r"\1", sample.question)  # 10.90 euros are 10.9 in code
        told = set(re.findall(r"\d+", f"{sample.question} {plain} {months} 100"))
        assert set(re.findall(r"\d+", before_output)) <= told, sample.id


def test_tool_math_hints_stand_where_their_kind_belongs() -> None:
    for sample in hinted():
        (hint,) = sample.hints
        assert hint.position is not None
        whole = "".join(segment.text for segment in sample.trace)
        if hint.kind is HintKind.DELAYED_CODE:
            assert whole[hint.position :].startswith("```python\n")
            assert hint.position > 0
            assert hint.text.endswith("\n")
        else:
            assert hint.kind is HintKind.DISTRUST_RESULT
            end_of_result = len(sample.trace[0].text) + len(sample.trace[1].text)
            doubt = whole[end_of_result : hint.position]
            assert len(doubt) > 10
            assert "\\boxed" not in doubt


def test_tool_math_counts_match_the_issue() -> None:
    assert Counter(sample.tags[0] for sample in samples()) == {
        "hinted": 30,
        "plain": 100,
        "validation": 60,
        "test": 200,
    }
    assert Counter(sample.split for sample in samples()) == {Split.TRAIN: 130, Split.VALIDATION: 60, Split.TEST: 200}
    kinds = Counter(hint.kind for sample in hinted() for hint in sample.hints)
    assert kinds == {HintKind.DELAYED_CODE: 20, HintKind.DISTRUST_RESULT: 10}
    wordings = {
        pool: {tag(s, "wording") for s in samples() if s.tags[0] == pool} for pool in ("hinted", "plain", "test")
    }
    assert len(wordings["hinted"]) == 30  # no two traces on one wording
    assert len(wordings["plain"]) >= 50
    assert not wordings["plain"] & wordings["hinted"]  # reinforcement meets wordings that the warm start has not seen
    assert len(wordings["test"]) >= 25
    assert all(sample.tools == ("python",) and sample.kind == "numeric" for sample in samples())
    assert all((sample.trace != ()) == ("hinted" in sample.tags) for sample in samples())
    assert all(sample.licence == "Apache-2.0" for sample in samples())


def test_tool_math_splits_share_no_wording_and_no_numbers() -> None:
    split_of_wording: dict[str, set[str]] = {}
    numbers: Counter[tuple[str, ...]] = Counter()
    for sample in samples():
        split_of_wording.setdefault(tag(sample, "wording"), set()).add(sample.split)
        numbers[tuple(sorted(re.findall(r"\d+(?:\.\d+)?", sample.question)))] += 1
    assert all(len(splits) == 1 for splits in split_of_wording.values())
    tests = {tuple(sorted(re.findall(r"\d+(?:\.\d+)?", s.question))) for s in samples() if s.split is Split.TEST}
    others = {tuple(sorted(re.findall(r"\d+(?:\.\d+)?", s.question))) for s in samples() if s.split is not Split.TEST}
    assert not tests & others
    assert max(numbers.values()) == 1
    assert len({sample.question for sample in samples()}) == len(samples())


def five_grams(sample: Sample) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]+|#", re.sub(r"\d+(?:\.\d+)?", "#", sample.question.lower()))
    return set(zip(*(words[start:] for start in range(5)), strict=False))


@pytest.mark.parametrize("split", [Split.TEST, Split.VALIDATION])
def test_tool_math_held_out_questions_share_hardly_any_five_grams_with_training(split: Split) -> None:
    training = set[tuple[str, ...]]().union(*(five_grams(s) for s in samples() if s.split is Split.TRAIN))
    grams = [five_grams(sample) for sample in samples() if sample.split is split]
    shares = [len(one & training) / len(one) for one in grams if one]
    assert sum(shares) / len(shares) < 0.03
    assert max(shares) < 0.35


def test_data_seeds_readme_tells_the_truth() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() in readme
    pools = ("hinted", "plain", "validation", "test")
    count = Counter((tag(sample, "skill"), sample.tags[0]) for sample in samples())
    rows = {skill: [count[skill, pool] for pool in pools] for skill in {skill for skill, _ in count}}
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    wordings = {(tag(sample, "wording"), sample.tags[0]) for sample in samples()}
    rows["wordings"] = [sum(pool == name for _, pool in wordings) for name in pools]
    for name, numbers in rows.items():
        assert f"| {name} | {' | '.join(map(str, numbers))} |" in readme, name
