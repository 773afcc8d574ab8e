"""The evaluator with a collector and a judge made by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge_rl.errors import DataError, VerifierError
from edge_rl.evaluation.evaluator import evaluate, load_report, paired, paired_at_8, save_report
from edge_rl.types import (
    Author,
    EvalReport,
    Execution,
    ExecutionStatus,
    Prompt,
    Rollout,
    Segment,
    StopReason,
    Verdict,
)


def _prompt(sample_id: str, *, hint_level: int = 0, shots: int = 0) -> Prompt:
    return Prompt(sample_id=sample_id, token_ids=(1, 2), hint_level=hint_level, shots=shots)


def _rollout(prompt: Prompt, member: int, *, num_tokens: int = 3) -> Rollout:
    tokens = tuple(range(num_tokens))
    segment = Segment(author=Author.POLICY, token_ids=tokens, behaviour_logprobs=(-1.0,) * num_tokens)
    return Rollout(
        prompt=prompt, group_id=prompt.sample_id, member=member, segments=(segment,), stop_reason=StopReason.STOP
    )


def _collect(prompts: Sequence[Prompt], num_samples: int) -> list[Rollout]:
    return [_rollout(prompt, member) for member in range(num_samples) for prompt in prompts]


def _judge(outcomes: Mapping[str, Sequence[bool | None]]) -> Callable[[Rollout], Verdict]:
    return lambda rollout: Verdict(correct=outcomes[rollout.prompt.sample_id][rollout.member], reason="by hand")


def _report(outcomes: dict[str, Sequence[bool | None]], name: str = "tuned") -> EvalReport:
    return evaluate(
        name,
        [_prompt(sample_id) for sample_id in outcomes],
        num_samples=len(next(iter(outcomes.values()))),
        collect=_collect,
        judge=_judge(outcomes),
        resamples=500,
        seed=0,
    )


def test_evaluate_counts_and_averages_over_questions() -> None:
    report = _report({"a": (True, True, False, False), "b": (False, False, False, True)})
    assert report.num_correct == {"a": 2, "b": 1}
    assert report.num_samples == {"a": 4, "b": 4}
    assert report.pass_at_1.value == pytest.approx((0.5 + 0.25) / 2, abs=1e-12)
    assert (report.pass_at_1.low, report.pass_at_1.high) == (0.25, 0.5)
    assert report.pass_at_8 is None
    assert (report.tokens, report.code_share, report.unjudged, report.truncated) == (3.0, 0.0, 0, 0)
    assert report.seconds >= 0


def test_evaluate_leaves_unjudged_completions_out_of_rates_and_counts_them() -> None:
    report = _report({"a": (True, None, False, True), "b": (None, None, None, None)})
    assert report.num_samples == {"a": 3, "b": 0}
    assert report.pass_at_1.value == pytest.approx(2 / 3, abs=1e-12)
    assert report.unjudged == 5


def test_evaluate_gives_pass_at_8_over_the_questions_with_8_judged() -> None:
    nine = (True,) + (False,) * 8
    report = _report({"a": nine, "b": (False,) * 9})
    assert report.pass_at_8 is not None
    # One right of nine: the wrong draw of 8 is the one that leaves it out, C(8,8)/C(9,8) = 1/9.
    assert report.pass_at_8.value == pytest.approx((8 / 9 + 0) / 2, abs=1e-12)
    short = _report({"a": nine, "b": (None, None) + (False,) * 7})
    assert short.pass_at_8 is not None
    assert short.pass_at_8.value == pytest.approx(8 / 9, abs=1e-12)
    assert _report({"a": (None, None) + (False,) * 7}).pass_at_8 is None
    assert _report({"a": (True,) * 8}).pass_at_8 is not None


def test_evaluate_asks_spread_questions_8_times_for_pass_at_8() -> None:
    outcomes = {name: (name == "c",) * 8 for name in "abcdef"}
    report = evaluate(
        "x",
        [_prompt(name) for name in outcomes],
        num_samples=2,
        num_at_8=3,
        collect=_collect,
        judge=_judge(outcomes),
        resamples=100,
        seed=0,
    )
    assert report.num_samples == {"a": 8, "b": 2, "c": 8, "d": 2, "e": 8, "f": 2}
    assert report.pass_at_8 is not None
    assert report.pass_at_8.value == pytest.approx(1 / 3, abs=1e-12)
    assert report.pass_at_1.value == pytest.approx(1 / 6, abs=1e-12)


def test_evaluate_weighs_questions_alike_however_often_they_are_asked() -> None:
    def collect(prompts: Sequence[Prompt], num_samples: int) -> list[Rollout]:
        return [_rollout(prompt, member, num_tokens=num_samples) for prompt in prompts for member in range(num_samples)]

    report = evaluate(
        "x",
        [_prompt("a"), _prompt("b")],
        num_samples=2,
        num_at_8=1,
        collect=collect,
        judge=_judge({"a": (True,) * 8, "b": (False,) * 2}),
        resamples=100,
        seed=0,
    )
    # 8 completions of 8 tokens and 2 of 2: (8 + 2) / 2, not 68 / 10.
    assert report.tokens == pytest.approx(5.0, abs=1e-12)


def test_evaluate_reports_code_share_tokens_and_truncation() -> None:
    ran = Execution(status=ExecutionStatus.OK, stdout="4")

    def collect(prompts: Sequence[Prompt], num_samples: int) -> list[Rollout]:
        plain, coded = _collect(prompts, num_samples)
        tool = Segment(author=Author.TOOL, token_ids=(7, 8, 9, 10))
        coded = replace(coded, executions=(ran, ran), segments=(*coded.segments, tool), stop_reason=StopReason.LENGTH)
        return [replace(plain, segments=()), coded]

    report = evaluate(
        "tuned",
        [_prompt("a")],
        num_samples=2,
        collect=collect,
        judge=_judge({"a": (True, False)}),
        resamples=100,
        seed=0,
    )
    assert report.code_share == 0.5
    assert report.tokens == 1.5  # 0 and 3 policy tokens; tool tokens do not count
    assert report.truncated == 1


@pytest.mark.parametrize("prompt", [_prompt("a", hint_level=1), _prompt("a", shots=2)])
def test_evaluate_refuses_prompts_with_help(prompt: Prompt) -> None:
    with pytest.raises(DataError, match="evaluation allows 0 and 0"):
        evaluate("x", [prompt], num_samples=1, collect=_collect, judge=_judge({}), resamples=100, seed=0)


def test_evaluate_refuses_rollouts_that_were_helped_or_changed_or_unfinished() -> None:
    def run(change: Callable[[Rollout], list[Rollout]]) -> None:
        def collect(prompts: Sequence[Prompt], num_samples: int) -> list[Rollout]:
            return [changed for rollout in _collect(prompts, num_samples) for changed in change(rollout)]

        evaluate("x", [_prompt("a")], num_samples=1, collect=collect, judge=_judge({}), resamples=100, seed=0)

    hint = Segment(author=Author.HINT, token_ids=(5,))
    with pytest.raises(DataError, match="contains a hint"):
        run(lambda rollout: [replace(rollout, segments=(hint, *rollout.segments))])
    with pytest.raises(DataError, match="another prompt"):
        run(lambda rollout: [replace(rollout, prompt=_prompt("a", hint_level=2))])
    with pytest.raises(DataError, match="another prompt"):
        run(lambda rollout: [rollout, replace(rollout, prompt=_prompt("b"))])
    with pytest.raises(DataError, match="no stop reason"):
        run(lambda rollout: [replace(rollout, stop_reason=None)])
    with pytest.raises(DataError, match="0 rollouts of a, expected 1"):
        run(lambda rollout: [])


def test_evaluate_refuses_empty_and_repeated_questions() -> None:
    with pytest.raises(DataError, match="no questions"):
        evaluate("x", [], num_samples=1, collect=_collect, judge=_judge({}), resamples=100, seed=0)
    with pytest.raises(DataError, match="1 of the questions occur twice: a,"):
        evaluate("x", [_prompt("a")] * 2, num_samples=1, collect=_collect, judge=_judge({}), resamples=100, seed=0)
    with pytest.raises(DataError, match="num_samples must be at least 1, got 0"):
        evaluate("x", [_prompt("a")], num_samples=0, collect=_collect, judge=_judge({}), resamples=100, seed=0)


def test_evaluate_says_when_nothing_could_be_judged() -> None:
    with pytest.raises(VerifierError, match="none of 2 completions could be judged; first reason: by hand"):
        _report({"a": (None, None)})


def test_paired_is_a_minus_b_per_question() -> None:
    better = _report({"a": (True, True), "b": (True, False)})
    worse = _report({"a": (True, False), "b": (False, False)}, "base")
    difference = paired(better, worse)
    assert (difference.value, difference.low, difference.high) == (0.5, 0.5, 0.5)
    assert paired(worse, better).value == -0.5


def test_paired_uses_the_questions_that_both_could_judge() -> None:
    a = _report({"a": (True, True), "b": (True, True)})
    b = _report({"a": (False, True), "b": (None, None)})
    assert paired(a, b).value == 0.5


def test_paired_refuses_reports_of_other_questions() -> None:
    with pytest.raises(DataError, match="different questions"):
        paired(_report({"a": (True,)}), _report({"b": (True,)}))


def test_paired_at_8_is_over_the_questions_with_eight_judged_completions() -> None:
    once, never = (True, *[False] * 7), (False,) * 8
    better = _report({"a": once, "b": once, "c": never, "d": (True, *[None] * 7)})
    worse = _report({"a": never, "b": once, "c": never, "d": (True,) * 8}, "base")
    found = paired_at_8(better, worse)
    assert found is not None
    difference, count = found
    assert count == 3
    # 1 - 0, 1 - 1, 0 - 0
    assert difference.value == pytest.approx(1 / 3)
    assert difference.low == 0.0 and difference.high == 1.0
    assert paired_at_8(_report({"a": (True,)}), _report({"a": (True,)})) is None


@pytest.mark.parametrize("num_samples", [2, 8])
def test_report_survives_the_file(tmp_path: Path, num_samples: int) -> None:
    report = _report({"a": (True,) * num_samples, "ü/1": (False,) * num_samples})
    path = tmp_path / "eval" / "tuned.json"
    save_report(report, path)
    assert load_report(path) == report
    assert [entry.name for entry in path.parent.iterdir()] == ["tuned.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pass_at_1": 3, "pass_at_8": null}'])
def test_load_report_names_the_file_that_is_no_report(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"broken\.json is no evaluation report"):
        load_report(path)
    with pytest.raises(DataError, match="No such file"):
        load_report(tmp_path / "absent.json")
