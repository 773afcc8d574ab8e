from typing import Any

import pytest

from edge_rl.config import ScoringConfig
from edge_rl.errors import ConfigError, DataError
from edge_rl.scoring.scorer import Scorer, gold_check, gold_completion, judge_text
from edge_rl.types import Group, Sample, StopReason
from tests.builders import make_rollout, policy

SAMPLE = Sample(id="s", question="What is 2 + 2?", answer="4")


def score(*texts: str, sample: Sample = SAMPLE, **fields: Any) -> list[tuple[bool | None, float | None]]:
    rollouts = tuple(make_rollout(policy(1), policy_text=text, **fields) for text in texts)
    group = Group(id="g", sample_id="s", rollouts=rollouts, born=0)
    (scored,) = Scorer({"s": sample}, ScoringConfig()).score([group])
    return [(verdict.correct, reward.total) for verdict, reward in zip(scored.verdicts, scored.rewards, strict=True)]


def test_scorer_judges_each_rollout_in_order() -> None:
    assert score(r"\boxed{4}", r"\boxed{5}", "") == [(True, 1.0), (False, 0.0), (False, 0.0)]


def test_the_format_is_logged_beside_every_reward() -> None:
    rollouts = tuple(make_rollout(policy(1), policy_text=text) for text in (r"\boxed{4}", "4", ""))
    (scored,) = Scorer({"s": SAMPLE}, ScoringConfig()).score([Group(id="g", sample_id="s", rollouts=rollouts, born=0)])
    assert [reward.signals["format"] for reward in scored.rewards] == [1.0, 0.0, 0.0]


def test_tool_output_is_no_commitment() -> None:
    assert score("let me see", text=r"let me see \boxed{4}") == [(False, 0.0)]


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        (StopReason.STOP, (True, 1.0)),
        (StopReason.TOOL_LIMIT, (True, 1.0)),
        (StopReason.LENGTH, (False, 0.0)),
        (StopReason.GARBLED, (False, 0.0)),
        (StopReason.ERROR, (None, None)),
    ],
)
def test_the_stop_reason_decides_what_is_judged(
    stop_reason: StopReason, expected: tuple[bool | None, float | None]
) -> None:
    assert score(r"\boxed{4}", stop_reason=stop_reason) == [expected]


def test_truncated_rollouts_can_be_left_out_of_training_and_are_wrong_in_a_measurement() -> None:
    cut = make_rollout(policy(1), policy_text=r"\boxed{4}", stop_reason=StopReason.LENGTH)
    whole = make_rollout(policy(1), policy_text=r"\boxed{4}")
    group = Group(id="g", sample_id="s", rollouts=(cut, whole), born=0)
    scorer = Scorer({"s": SAMPLE}, ScoringConfig(truncated="left_out"))
    (scored,) = scorer.score([group])
    assert [(v.correct, r.total) for v, r in zip(scored.verdicts, scored.rewards, strict=True)] == [
        (None, None),
        (True, 1.0),
    ]
    assert scorer.judge(cut).correct is False
    (scored,) = Scorer({"s": SAMPLE}, ScoringConfig()).score([group])
    assert [verdict.correct for verdict in scored.verdicts] == [False, True]


def test_a_control_experiment_judges_training_by_something_else_and_measurements_by_the_answer() -> None:
    texts = (r"\boxed{4}", r"\boxed{5}", "4", r"\boxed{4} \boxed{5}")
    rollouts = tuple(make_rollout(policy(1), policy_text=text, member=member) for member, text in enumerate(texts))
    group = Group(id="g", sample_id="s", rollouts=rollouts, born=0)
    scorer = Scorer({"s": SAMPLE}, ScoringConfig(control="format"))
    (scored,) = scorer.score([group])
    assert [verdict.correct for verdict in scored.verdicts] == [True, True, False, False]
    assert [reward.total for reward in scored.rewards] == [1.0, 1.0, 0.0, 0.0]
    assert [scorer.judge(rollout).correct for rollout in rollouts] == [True, False, True, False]


def test_coin_flips_are_fair_repeat_and_do_not_look_at_the_answer() -> None:
    def flips(text: str) -> list[bool | None]:
        groups = [
            Group(
                id=f"g{index}",
                sample_id="s",
                rollouts=tuple(
                    make_rollout(policy(1), policy_text=text, group_id=f"g{index}", member=member)
                    for member in range(8)
                ),
                born=0,
            )
            for index in range(64)
        ]
        scored = Scorer({"s": SAMPLE}, ScoringConfig(control="random")).score(groups)
        return [verdict.correct for group in scored for verdict in group.verdicts]

    right = flips(r"\boxed{4}")
    assert right == flips("no idea")
    # 512 fair coins: a share outside of 0.4 to 0.6 has a chance below 1e-5, and the flips are the same every time
    assert 0.4 < sum(map(bool, right)) / len(right) < 0.6


def test_a_verifier_that_fails_leaves_the_completion_unjudged() -> None:
    broken = Sample(id="s", question="q", answer="four")
    assert score(r"\boxed{4}", sample=broken) == [(None, None)]
    assert "not a number" in judge_text("4", broken).reason


def test_an_unfinished_group_is_refused() -> None:
    with pytest.raises(DataError, match="unfinished"):
        score("x", stop_reason=None)


def test_gold_check_names_the_sample() -> None:
    gold_check([SAMPLE])
    with pytest.raises(DataError, match=r"sample bad: .*does not accept its own answer"):
        gold_check([SAMPLE, Sample(id="bad", question="q", answer="1, 2")])
    with pytest.raises(ConfigError, match="did you mean 'numeric'"):
        gold_check([Sample(id="x", question="q", answer="1", kind="numric")])


def test_gold_check_refuses_a_verifier_that_accepts_nothing_at_all() -> None:
    sample = Sample(id="any", question="q", answer=".*", kind="regex", options={"on": "completion", "example": "x"})
    gold_check([sample])
    sample = Sample(id="void", question="q", answer="", kind="code-output")
    with pytest.raises(DataError, match="void"):
        gold_check([sample])


def test_gold_check_refuses_a_verifier_that_cannot_judge_the_empty_text() -> None:
    sample = Sample(id="unsure", question="q", answer="", kind="all_of", options={"verifiers": [{"kind": "code"}]})
    with pytest.raises(DataError, match="does not reject an empty completion"):
        gold_check([sample])


def test_the_gold_completion_follows_the_kind() -> None:
    assert gold_completion(SAMPLE) == r"\boxed{4}"
    assert gold_completion(Sample(id="s", question="q", answer="B", kind="choice")) == r"\boxed{\text{B}}"
    assert gold_completion(Sample(id="s", question="q", answer="a+", kind="regex")) is None
