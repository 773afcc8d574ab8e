"""Stages of worked examples, which they are, and how they stand in a prompt."""

from typing import Any

import pytest

from edge_rl.data.prompts import build_prompt, trace_text
from edge_rl.data.shots import ShotSchedule, choose_examples
from edge_rl.errors import ConfigError, DataError
from edge_rl.types import Author, Hint, HintKind, Sample, TraceSegment
from tests.builders_models import tiny_tokenizer


def _schedule(*stages: int, num_steps: int = 30, success: float = 0.5) -> ShotSchedule:
    return ShotSchedule(stages, num_steps, success)


def _shots(schedule: ShotSchedule, rates: list[float]) -> list[int]:
    """The worked examples before each step."""
    found: list[int] = []
    for rate in rates:
        found.append(schedule.shots)
        schedule.record(rate)
    return found


def test_a_stage_ends_after_its_share_of_the_steps() -> None:
    assert _shots(_schedule(3, 2, 0, num_steps=6), [0.0] * 6) == [3, 3, 2, 2, 0, 0]
    # a share that is no whole number is rounded up
    assert _shots(_schedule(2, 0, num_steps=5), [0.0] * 5) == [2, 2, 2, 0, 0]


def test_a_stage_ends_when_three_steps_are_good_enough() -> None:
    assert _shots(_schedule(3, 2, 0), [0.5] * 8) == [3, 3, 3, 2, 2, 2, 0, 0]
    # the mean counts, and only of this stage
    assert _shots(_schedule(3, 0), [0.0, 0.2, 0.7, 0.6, 0.9]) == [3, 3, 3, 3, 0]
    assert _shots(_schedule(3, 0), [0.4] * 9) == [3] * 9


def test_the_last_stage_never_ends() -> None:
    assert _shots(_schedule(0, num_steps=2), [1.0] * 5) == [0] * 5


def test_the_state_continues() -> None:
    schedule = _schedule(3, 2, 0)
    _shots(schedule, [0.5] * 5)
    again = _schedule(3, 2, 0)
    again.load_state(schedule.state())
    assert _shots(again, [0.5] * 3) == _shots(schedule, [0.5] * 3) == [2, 0, 0]


@pytest.mark.parametrize("stages", [(), (3,), (3, 0, 2), (-1, 0)])
def test_stages_that_do_not_end_with_none_are_refused(stages: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="ends with 0"):
        ShotSchedule(stages, 10, 0.5)


# -- which and how ---------------------------------------------------------------------------------------------------


def _traced(name: str, question: str | None = None) -> Sample:
    trace = (
        TraceSegment(author=Author.POLICY, text=f"```python\nprint({name})\n```"),
        TraceSegment(author=Author.TOOL, text="\n```output\n1\n```\n"),
        TraceSegment(author=Author.POLICY, text="so 1"),
    )
    return Sample(id=name, question=question or f"question {name}", answer="1", trace=trace)


TRACED = [_traced(str(index)) for index in range(6)]


def test_examples_are_others_and_depend_on_sample_and_seed_only() -> None:
    for sample in TRACED:
        chosen = choose_examples(sample, TRACED, 3, seed=1)
        assert len({example.id for example in chosen}) == 3
        assert sample not in chosen
        assert choose_examples(sample, TRACED, 3, seed=1) == chosen
    by_seed = [[example.id for example in choose_examples(TRACED[0], TRACED, 3, seed=seed)] for seed in range(6)]
    assert any(ids != by_seed[0] for ids in by_seed)


def test_a_sample_with_the_same_question_is_no_example() -> None:
    twin = _traced("twin", "question 0")
    for seed in range(10):
        assert twin not in choose_examples(TRACED[0], [twin, *TRACED], 3, seed=seed)


def test_too_few_traces_are_an_error() -> None:
    with pytest.raises(DataError, match="asks for 3 worked examples and 2 other"):
        choose_examples(TRACED[0], TRACED[:3], 3, seed=0)


def test_examples_stand_before_the_question_as_turns() -> None:
    tokenizer: Any = tiny_tokenizer()
    prompt = build_prompt(TRACED[0], tokenizer, system="Choose.", examples=TRACED[1:3])
    text = tokenizer.decode(list(prompt.token_ids))
    expected = "<|im_start|>system\nChoose.<|im_end|>\n"
    for example in TRACED[1:3]:
        expected += f"<|im_start|>user\n{example.question}<|im_end|>\n"
        expected += f"<|im_start|>assistant\n{trace_text(example)}<|im_end|>\n"
    expected += "<|im_start|>user\nquestion 0<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected
    assert prompt.shots == 2
    assert build_prompt(TRACED[0], tokenizer, system="Choose.").shots == 0


def test_a_trace_is_shown_with_its_hints_and_results() -> None:
    hinted = Sample(
        id="h",
        question="q",
        answer="1",
        trace=(TraceSegment(author=Author.POLICY, text="ab"),),
        hints=(Hint(kind=HintKind.FREE, text="!", position=1),),
    )
    assert trace_text(hinted) == "a!b"
    assert "```output\n1\n```" in trace_text(TRACED[0])
    with pytest.raises(DataError, match="no trace to show"):
        trace_text(Sample(id="s", question="q", answer="1"))
