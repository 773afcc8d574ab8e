"""Each rule of the doctor on facts that call it, and on facts that do not."""

from dataclasses import replace
from typing import Any

import pytest

from edge_rl.config import Config, build
from edge_rl.monitor.doctor import RULES, Facts, Severity, diagnose
from edge_rl.monitor.guards import Validation
from edge_rl.types import Estimate, EvalReport, StepReport

HEALTHY = {
    "loss/value": 0.08,
    "loss/grad_norm": 0.4,
    "loss/skipped": 0.0,
    "loss/entropy": 0.3,
    "loss/kl": 0.05,
    "loss/clip_high": 0.0,
    "loss/clip_low": 0.0,
    "drift/mean": 1e-5,
    "learning/live_rollouts": 40.0,
    "groups/count": 8.0,
    "groups/live": 5.0,
    "rollout/count": 64.0,
    "rollout/unjudged": 0.0,
    "rollout/truncated": 0.1,
    "rollout/garbled": 0.0,
    "rollout/code_share": 0.9,
    "rollout/code_failed": 0.05,
    "signal/format": 0.95,
    "reward/solve_rate": 0.4,
    "seconds/rollout": 20.0,
    "seconds/step": 45.0,
}


def _steps(count: int = 8, **changed: Any) -> list[StepReport]:
    return [
        StepReport(
            step=step,
            metrics=HEALTHY
            | {
                name.replace("__", "/"): value[step] if isinstance(value, list) else value
                for name, value in changed.items()
            },
        )
        for step in range(count)
    ]


def _config(**sections: dict[str, Any]) -> Config:
    return build(sections)


def _report(name: str, at_8: float | None = 0.7) -> EvalReport:
    return EvalReport(
        name=name,
        num_correct={},
        num_samples={},
        pass_at_1=Estimate(value=0.5, low=0.4, high=0.6),
        pass_at_8=None if at_8 is None else Estimate(value=at_8, low=at_8 - 0.1, high=at_8 + 0.1),
        code_share=0.9,
        tokens=50.0,
        unjudged=0,
        truncated=0,
        seconds=1.0,
    )


def _facts(**changed: Any) -> Facts:
    usual: dict[str, Any] = {
        "config": Config(),
        "steps": _steps(),
        "validations": [Validation(step=0, pass_at_1=0.4), Validation(step=8, pass_at_1=0.5)],
        "tests": {"warm start": _report("warm start"), "tuned": _report("tuned", 0.75)},
        "differences": {"tuned_vs_warm_start": Estimate(value=0.1, low=0.02, high=0.2)},
        "num_train": 60,
        "has_tools": True,
        "phase": "done",
    }
    return Facts(**(usual | changed))


def _rules(facts: Facts) -> list[str]:
    return [diagnosis.rule for diagnosis in diagnose(facts)]


def _validations(*values: float) -> list[Validation]:
    return [Validation(step=4 * index, pass_at_1=value) for index, value in enumerate(values)]


CALLED: list[tuple[str, Facts]] = [
    ("stopped", _facts(phase="reinforce", is_alive=False)),
    ("no_signal", _facts(steps=_steps(learning__live_rollouts=0.0))),
    ("never_right", _facts(steps=_steps(reward__solve_rate=0.01))),
    ("skipped", _facts(steps=_steps(loss__skipped=[0.0] * 7 + [1.0]))),
    ("drift", _facts(steps=_steps(drift__mean=0.03))),
    ("format", _facts(steps=_steps(signal__format=0.4))),
    ("unjudged", _facts(steps=_steps(rollout__unjudged=4.0))),
    ("entropy_high", _facts(steps=_steps(loss__entropy=3.5))),
    (
        "not_carried_over",
        _facts(steps=_steps(reward__solve_rate=[0.3] * 4 + [0.6] * 4), validations=_validations(0.4, 0.41)),
    ),
    ("no_proof", _facts(differences={"tuned_vs_warm_start": Estimate(value=0.04, low=-0.01, high=0.09)})),
    ("no_proof", _facts(differences={"tuned_vs_base": Estimate(value=0.04, low=0.0, high=0.09)})),
    ("gguf_worse", _facts(differences={"gguf_vs_tuned": Estimate(value=-0.04, low=-0.08, high=-0.01)})),
    ("truncated", _facts(steps=_steps(rollout__truncated=0.35))),
    ("few_live_groups", _facts(steps=_steps(groups__live=3.0))),
    ("nearly_always_right", _facts(steps=_steps(reward__solve_rate=0.93))),
    ("entropy_low", _facts(steps=_steps(loss__entropy=0.03))),
    ("garbled", _facts(steps=_steps(rollout__garbled=0.06))),
    ("no_code", _facts(steps=_steps(rollout__code_share=0.05))),
    ("code_fails", _facts(steps=_steps(rollout__code_failed=0.4))),
    ("gradient_clipped", _facts(steps=_steps(loss__grad_norm=12.0))),
    ("ratio_clipped", _facts(steps=_steps(loss__clip_high=0.15, loss__clip_low=0.1))),
    ("kl_high", _facts(steps=_steps(loss__kl=0.6))),
    ("pass_at_8_fell", _facts(differences={"at_8_tuned_vs_base": Estimate(value=-0.2, low=-0.3, high=-0.05)})),
    ("loss_zero", _facts(steps=_steps(loss__value=0.0001))),
    ("best_was_early", _facts(validations=_validations(0.4, 0.55, 0.5, 0.5))),
    ("warming_up", _facts(steps=_steps(2), phase="reinforce", is_alive=True)),
    ("not_all_seen", _facts(num_train=65)),
    ("slow_part", _facts(steps=_steps(seconds__rollout=40.0))),
]
NOT_CALLED: list[tuple[str, Facts]] = [
    ("stopped", _facts(phase="reinforce", is_alive=True)),
    ("stopped", _facts(phase="")),
    ("no_signal", _facts(steps=_steps(learning__live_rollouts=[0.0] * 7 + [8.0]))),
    ("no_signal", _facts(steps=_steps(1, learning__live_rollouts=0.0))),
    ("never_right", _facts(steps=_steps(reward__solve_rate=0.03))),
    ("never_right", _facts(steps=_steps(1, reward__solve_rate=0.0))),
    ("loss_zero", _facts(steps=_steps(loss__value=0.0, loss__grad_norm=0.0))),
    ("loss_zero", _facts(steps=_steps(loss__value=0.0), config=_config(learning={"epochs": 2}))),
    ("not_carried_over", _facts(steps=_steps(reward__solve_rate=[0.3] * 4 + [0.6] * 4))),
    ("not_carried_over", _facts(validations=_validations(0.4, 0.4))),
    ("no_proof", _facts(differences={})),
    ("gguf_worse", _facts(differences={"gguf_vs_tuned": Estimate(value=-0.01, low=-0.04, high=0.01)})),
    ("gguf_worse", _facts(differences={"gguf_vs_tuned": Estimate(value=0.03, low=0.01, high=0.05)})),
    ("no_code", _facts(steps=_steps(rollout__code_share=0.0), has_tools=False)),
    ("gradient_clipped", _facts(steps=_steps(loss__grad_norm=[12.0] * 7 + [2.0]))),
    ("gradient_clipped", _facts(steps=_steps(loss__grad_norm=12.0), config=_config(learning={"max_grad_norm": 2.0}))),
    ("pass_at_8_fell", _facts(differences={"at_8_tuned_vs_base": Estimate(value=-0.2, low=-0.5, high=0.05)})),
    (
        "pass_at_8_fell",  # the warm start is what the reinforcement began with
        _facts(
            differences={
                "at_8_tuned_vs_warm_start": Estimate(value=0.1, low=0.0, high=0.2),
                "at_8_tuned_vs_base": Estimate(value=-0.2, low=-0.3, high=-0.05),
            }
        ),
    ),
    ("best_was_early", _facts(validations=_validations(0.4, 0.45, 0.5, 0.49))),
    ("best_was_early", _facts(validations=_validations(0.4, 0.52, 0.5, 0.5))),
    ("warming_up", _facts(steps=())),
    ("not_all_seen", _facts(num_train=65, phase="reinforce", is_alive=True)),
]


def test_a_healthy_run_has_no_diagnosis() -> None:
    assert _rules(_facts()) == []
    assert _rules(Facts(config=Config())) == []


@pytest.mark.parametrize(("rule", "facts"), CALLED)
def test_each_rule_speaks_where_it_should_and_alone(rule: str, facts: Facts) -> None:
    (diagnosis,) = diagnose(facts)
    assert diagnosis.rule == rule
    for sentence in (diagnosis.what, diagnosis.why, diagnosis.do):
        assert sentence.endswith((".", ")."))
        assert sentence[0].isupper() or sentence[0].isdigit()


@pytest.mark.parametrize(("rule", "facts"), NOT_CALLED)
def test_each_rule_is_silent_where_it_should(rule: str, facts: Facts) -> None:
    assert rule not in _rules(facts)


def test_every_rule_is_called_here() -> None:
    assert {rule for rule, _ in CALLED} == set(RULES)
    assert len(RULES) >= 15


def test_the_most_serious_comes_first() -> None:
    steps = _steps(loss__value=0.0, rollout__garbled=0.1, reward__solve_rate=0.0)
    severities = [diagnosis.severity for diagnosis in diagnose(_facts(steps=steps))]
    assert severities == sorted(severities, reverse=True)
    assert severities[0] is Severity.PROBLEM and severities[-1] is Severity.NOTE


def test_a_number_that_is_none_is_left_out_of_the_mean() -> None:
    steps = _steps(reward__solve_rate=[0.4] * 7 + [float("nan")])
    assert _rules(_facts(steps=steps)) == []


def test_what_is_cut_more_often_than_not_is_a_problem() -> None:
    (diagnosis,) = diagnose(_facts(steps=_steps(rollout__truncated=0.6)))
    assert diagnosis.severity is Severity.PROBLEM
    assert "rollout.max_tokens = 128" in diagnosis.what


def test_now_is_the_mean_of_the_newest_steps() -> None:
    facts = replace(_facts(), steps=_steps(rollout__garbled=[1.0] * 3 + [0.0] * 5))
    assert _rules(facts) == []
