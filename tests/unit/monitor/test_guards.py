"""Each guard on a history that calls it and on histories that only come near."""

import math
from typing import Any

import pytest

from edge_rl.config import GuardsConfig
from edge_rl.errors import ConfigError
from edge_rl.monitor.guards import GUARDS, Finding, Validation, Watch
from edge_rl.types import StepReport

HEALTHY = {
    "loss/value": 0.001,
    "loss/grad_norm": 0.4,
    "loss/skipped": 0.0,
    "loss/entropy": 0.3,
    "loss/kl": 0.05,
    "drift/mean": 1e-5,
    "groups/count": 8.0,
    "groups/live": 5.0,
    "rollout/count": 64.0,
    "rollout/unjudged": 0.0,
    "rollout/tokens": 60.0,
    "rollout/truncated": 0.1,
    "reward/mean": 0.4,
    "reward/solve_rate": 0.4,
}


def _steps(count: int, **changed: Any) -> list[StepReport]:
    """Healthy steps; a changed metric is a number, or a list with one value a step."""
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


def _validations(*values: float, at_k: tuple[float, ...] | None = None, every: int = 4) -> list[Validation]:
    return [
        Validation(step=index * every, pass_at_1=value, pass_at_k=None if at_k is None else at_k[index])
        for index, value in enumerate(values)
    ]


def _look(steps: list[StepReport], validations: list[Validation] | None = None, **settings: Any) -> list[Finding]:
    return Watch(GuardsConfig(**settings)).look(steps, validations or [])


def _names(*args: Any, **settings: Any) -> list[str]:
    return [finding.guard for finding in _look(*args, **settings)]


def test_a_healthy_run_hears_nothing() -> None:
    validations = _validations(0.4, 0.45, 0.5, at_k=(0.6, 0.62, 0.61))
    for count in range(13):
        assert _look(_steps(count), validations) == []


PROVOKED: list[tuple[str, list[StepReport], list[Validation]]] = [
    ("non_finite", _steps(1, loss__skipped=1.0), []),
    ("non_finite", _steps(1, loss__value=math.nan), []),
    ("non_finite", _steps(2, loss__grad_norm=[0.4, math.inf]), []),
    ("entropy_collapse", _steps(2, loss__entropy=0.019), []),
    ("entropy_collapse", _steps(8, loss__entropy=[0.4] * 5 + [0.19] * 3), []),
    ("entropy_collapse", _steps(10, loss__entropy=[0.2] * 3 + [0.5] * 4 + [0.22] * 3), []),  # from its height
    ("narrowing", _steps(1), _validations(0.4, 0.5, 0.55, at_k=(0.7, 0.64, 0.6))),
    ("reward_hacking", _steps(9, reward__mean=[0.3] * 4 + [0.5] * 5), _validations(0.4, 0.4, 0.38)),
    ("length_runaway", _steps(6, rollout__tokens=[50.0] * 3 + [101.0] * 3), []),
    ("dead_groups", _steps(5, groups__live=2.0), []),
    ("truncation", _steps(3, rollout__truncated=0.51), []),
    ("kl_runaway", _steps(2, loss__kl=1.1), []),
    ("verifier_errors", _steps(1, rollout__unjudged=13.0), []),
    ("engine_drift", _steps(1, drift__mean=0.06), []),
]
NEARLY: list[tuple[str, list[StepReport], list[Validation]]] = [
    ("non_finite", _steps(2, loss__skipped=[1.0, 0.0]), []),  # told when it happened
    ("entropy_collapse", _steps(2, loss__entropy=[0.3, 0.019]), []),  # one low step
    ("entropy_collapse", _steps(2, loss__entropy=[0.019, 0.021]), []),
    ("entropy_collapse", _steps(8, loss__entropy=[0.4] * 5 + [0.21] * 3), []),
    ("entropy_collapse", _steps(8, loss__entropy=[0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.1]), []),  # a single jump
    ("entropy_collapse", _steps(40, loss__entropy=[0.4 - 0.008 * step for step in range(40)]), []),  # slowly
    ("narrowing", _steps(1), _validations(0.4, 0.5, 0.55, at_k=(0.7, 0.7, 0.6))),  # once
    ("narrowing", _steps(1), _validations(0.4, 0.5, 0.55, at_k=(0.7, 0.66, 0.66))),
    ("narrowing", _steps(1), _validations(0.4, 0.4, 0.4, at_k=(0.7, 0.6, 0.6))),  # both fall: another trouble
    ("narrowing", _steps(1), _validations(0.4, 0.5, at_k=(0.7, 0.5))),
    ("narrowing", _steps(1), _validations(0.4, 0.5, 0.55)),
    ("reward_hacking", _steps(9, reward__mean=[0.3] * 4 + [0.5] * 5), _validations(0.4, 0.4, 0.41)),
    ("reward_hacking", _steps(9, reward__mean=[0.3] * 4 + [0.5] * 5), _validations(0.4, 0.42, 0.4)),
    ("reward_hacking", _steps(9, reward__mean=[0.3] * 4 + [0.39] * 5), _validations(0.4, 0.4, 0.38)),
    ("reward_hacking", _steps(9, reward__mean=[0.3] * 4 + [0.5] * 5), _validations(0.4, 0.3)),
    ("reward_hacking", _steps(7, reward__mean=[0.3] * 4 + [0.5] * 3), _validations(0.4, 0.4, 0.38)),  # three late steps
    ("length_runaway", _steps(6, rollout__tokens=[50.0] * 3 + [99.0] * 3), []),
    (
        "length_runaway",
        _steps(6, rollout__tokens=[50.0] * 3 + [150.0] * 3, reward__solve_rate=[0.4] * 3 + [0.5] * 3),
        [],
    ),
    ("dead_groups", _steps(4, groups__live=2.0), []),
    ("dead_groups", _steps(5, groups__live=[2.0, 2.0, 2.0, 2.0, 3.0]), []),
    ("truncation", _steps(3, rollout__truncated=[0.9, 0.5, 0.9]), []),
    ("truncation", _steps(2, rollout__truncated=0.9), []),
    ("kl_runaway", _steps(2, loss__kl=[0.9, 1.1]), []),
    ("verifier_errors", _steps(1, rollout__unjudged=12.0), []),
    ("engine_drift", _steps(1, drift__mean=0.05), []),
]


@pytest.mark.parametrize(("guard", "steps", "validations"), PROVOKED)
def test_each_trouble_calls_its_guard_and_no_other(
    guard: str, steps: list[StepReport], validations: list[Validation]
) -> None:
    (finding,) = _look(steps, validations)
    assert finding.guard == guard
    assert finding.action == GUARDS[guard].action
    assert any(character.isdigit() for character in finding.evidence) or guard == "non_finite"


@pytest.mark.parametrize(("guard", "steps", "validations"), NEARLY)
def test_what_only_comes_near_calls_nobody(guard: str, steps: list[StepReport], validations: list[Validation]) -> None:
    assert guard not in _names(steps, validations)


def test_every_guard_is_provoked_here() -> None:
    assert {guard for guard, _, _ in PROVOKED} == {guard for guard, _, _ in NEARLY} == set(GUARDS)


def test_a_metric_that_is_not_measured_calls_nobody() -> None:
    bare = [StepReport(step=step, metrics={"seconds/step": 1.0}) for step in range(12)]
    assert _look(bare, _validations(0.4, 0.3, 0.2)) == []
    unjudged = [StepReport(step=0, metrics={"rollout/count": 0.0, "rollout/unjudged": 0.0, "reward/mean": math.nan})]
    assert _look(unjudged, _validations(0.4, 0.3, 0.2)) == []


def test_a_trouble_is_told_once_in_quiet_steps() -> None:
    watch = Watch(GuardsConfig(quiet_steps=3))
    told = [step for step in range(10) if watch.look(_steps(step + 1, rollout__truncated=0.9), [])]
    assert told == [2, 5, 8]
    # a checkpoint takes the memory along
    again = Watch(GuardsConfig(quiet_steps=3), spoke=dict(watch.spoke))
    assert again.look(_steps(11, rollout__truncated=0.9), []) == []


def test_the_action_can_be_changed_and_a_guard_turned_off() -> None:
    steps = _steps(1, drift__mean=1.0)
    assert _look(steps, actions={"engine_drift": "warn"})[0].action == "warn"
    assert _look(steps, actions={"engine_drift": "off"}) == []


def test_thresholds_are_settings() -> None:
    assert _names(_steps(1, drift__mean=0.06), max_drift=0.1) == []
    assert _names(_steps(2, loss__entropy=0.2), min_entropy=0.25) == ["entropy_collapse"]
    assert _names(_steps(2, groups__live=2.0), dead_steps=2) == ["dead_groups"]
    assert _names(_steps(2, groups__live=2.0), dead_steps=2, max_dead_share=0.8) == []


def test_an_unknown_guard_is_refused() -> None:
    with pytest.raises(ConfigError, match="no guard is called 'entropy'; known: non_finite, "):
        Watch(GuardsConfig(actions={"entropy": "off"}))
