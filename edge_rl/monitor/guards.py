"""Watches a run while it trains and says when something goes wrong: each guard has a threshold, evidence and an action.

Knows metric names and numbers; no model. What an action does is the training's affair: warn, lower the learning rate, go
back to the best adapter, or end the reinforcement stage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from edge_rl.config import GuardAction, GuardsConfig
from edge_rl.errors import ConfigError
from edge_rl.types import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One measurement on held-out questions during training."""

    step: int
    """Optimizer steps taken; 0 = before the first."""
    pass_at_1: float
    pass_at_k: float | None = None
    """Share of questions with a right completion among k; None where k < 4, which says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the guards look at; the newest comes last."""

    steps: Sequence[StepReport]
    validations: Sequence[Validation]
    settings: GuardsConfig

    def values(self, metric: str, last: int | None = None) -> list[float]:
        """Return a metric over the steps that have it, or over the newest `last` of them."""
        found = [report.metrics[metric] for report in self.steps if metric in report.metrics]
        return found if last is None else found[-last:]

    def shares(self, part: str, whole: str, last: int) -> list[float]:
        """Return part / whole over the newest `last` steps."""
        newest = self.steps[-last:]
        return [report.metrics[part] / report.metrics[whole] for report in newest if report.metrics.get(whole)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A guard that spoke."""

    guard: str
    evidence: str
    """One line with the numbers and the threshold."""
    action: GuardAction


MIN_REWARD_STEPS = 4
"""Steps on either side of a rise of the reward; fewer rise by chance."""

Check = Callable[[History], str | None]
"""Returns the evidence, None while all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A check with what is done about it unless `guards.actions` says otherwise."""

    check: Check
    action: GuardAction


def non_finite(history: History) -> str | None:
    """The gradient or the loss of the newest step was no number; such a gradient is never applied."""
    newest = history.steps[-1].metrics
    wrong = [name for name, value in newest.items() if name.startswith("loss/") and not math.isfinite(value)]
    if newest.get("loss/skipped") or wrong:
        return f"{', '.join(wrong) or 'loss/grad_norm'} not finite: the step was dropped"
    return None


def entropy_collapse(history: History) -> str | None:
    """The policy has nearly stopped to vary: entropy below min_entropy, or halved within ten steps."""
    entropies = history.values("loss/entropy")
    if not entropies:
        return None
    low = history.settings.min_entropy
    if len(entropies) >= 2 and max(entropies[-2:]) < low:
        return f"entropy {entropies[-1]:.3f} nats per token, below {low} for two steps"
    # means of three: a single step of a few groups jumps about
    means = [fmean(entropies[end - 3 : end]) for end in range(3, len(entropies) + 1)][-10:]
    if len(means) > 3 and means[-1] < 0.5 * max(means[:-3]):
        return f"entropy fell from {max(means[:-3]):.3f} to {means[-1]:.3f} nats per token within ten steps"
    return None


def narrowing(history: History) -> str | None:
    """pass@k falls while pass@1 rises: the policy gives up answers that it could find for those that it finds at once."""
    measured = [item for item in history.validations if item.pass_at_k is not None]
    if len(measured) < 3:
        return None
    first, *_, before, now = measured
    limit = history.settings.max_pass_at_k_fall
    assert first.pass_at_k is not None and before.pass_at_k is not None and now.pass_at_k is not None
    falls = [first.pass_at_k - item for item in (before.pass_at_k, now.pass_at_k)]
    if min(falls) > limit and now.pass_at_1 > first.pass_at_1:
        return (
            f"validation pass@1 rose from {first.pass_at_1:.0%} to {now.pass_at_1:.0%} and pass@k fell from "
            f"{first.pass_at_k:.0%} to {now.pass_at_k:.0%}, by more than {limit:.0%} twice in a row"
        )
    return None


def reward_hacking(history: History) -> str | None:
    """The training reward rises and the held-out accuracy does not: what pays is not what is wanted."""
    if len(history.validations) < 3:
        return None
    first, *_, before, now = history.validations
    rewards = [(report.step, report.metrics["reward/mean"]) for report in history.steps if _has_reward(report)]
    early = [value for step, value in rewards if step < history.validations[1].step]
    late = [value for step, value in rewards if step >= before.step]
    if min(len(early), len(late)) < MIN_REWARD_STEPS:
        return None
    rise = fmean(late) - fmean(early)
    limit = history.settings.min_reward_rise
    if rise > limit and max(before.pass_at_1, now.pass_at_1) <= first.pass_at_1:
        return (
            f"mean reward rose by {rise:.2f} (more than {limit}), validation pass@1 went from {first.pass_at_1:.0%} to "
            f"{before.pass_at_1:.0%} and {now.pass_at_1:.0%}"
        )
    return None


def length_runaway(history: History) -> str | None:
    """Completions grow and grow without being right more often."""
    tokens, solved = history.values("rollout/tokens"), history.values("reward/solve_rate")
    if len(tokens) < 6 or len(solved) < 6:
        return None
    early, late = fmean(tokens[:3]), fmean(tokens[-3:])
    limit = history.settings.max_length_growth
    if late > limit * early and fmean(solved[-3:]) <= fmean(solved[:3]) + 0.05:
        return f"completions grew from {early:.0f} to {late:.0f} tokens (more than x{limit:g}), solved is no higher"
    return None


def dead_groups(history: History) -> str | None:
    """Most groups are all right or all wrong, step after step: they cost a rollout and teach nothing."""
    settings = history.settings
    live = history.shares("groups/live", "groups/count", settings.dead_steps)
    if len(live) == settings.dead_steps and max(live) < 1 - settings.max_dead_share:
        return f"{1 - fmean(live):.0%} of the groups without a signal in the last {len(live)} steps"
    return None


def truncation(history: History) -> str | None:
    """Most completions hit the length limit, step after step: what is scored is the limit."""
    settings = history.settings
    cut = history.values("rollout/truncated", settings.truncated_steps)
    if len(cut) == settings.truncated_steps and min(cut) > settings.max_truncated:
        return f"{fmean(cut):.0%} of the completions cut at max_tokens in the last {len(cut)} steps"
    return None


def kl_runaway(history: History) -> str | None:
    """The policy is far from its reference."""
    kls = history.values("loss/kl", 2)
    if len(kls) == 2 and min(kls) > history.settings.max_kl:
        return f"KL {kls[-1]:.2f} nats per token to the reference, above {history.settings.max_kl} for two steps"
    return None


def verifier_errors(history: History) -> str | None:
    """Many completions could not be judged."""
    unjudged = history.shares("rollout/unjudged", "rollout/count", 1)
    if unjudged and unjudged[-1] > history.settings.max_unjudged:
        return (
            f"{unjudged[-1]:.0%} of the completions could not be judged (more than {history.settings.max_unjudged:.0%})"
        )
    return None


def engine_drift(history: History) -> str | None:
    """Engine and trainer disagree on what was sampled: the rollouts are not those of the policy that is trained."""
    drift = history.values("drift/mean", 1)
    if drift and drift[-1] > history.settings.max_drift:
        return f"engine and trainer differ by {drift[-1]:.3f} nats per token (more than {history.settings.max_drift})"
    return None


GUARDS: Mapping[str, Guard] = {
    "non_finite": Guard(check=non_finite, action="roll_back"),
    "entropy_collapse": Guard(check=entropy_collapse, action="lower_lr"),
    "narrowing": Guard(check=narrowing, action="warn"),
    "reward_hacking": Guard(check=reward_hacking, action="stop"),
    "length_runaway": Guard(check=length_runaway, action="warn"),
    "dead_groups": Guard(check=dead_groups, action="warn"),
    "truncation": Guard(check=truncation, action="warn"),
    "kl_runaway": Guard(check=kl_runaway, action="roll_back"),
    "verifier_errors": Guard(check=verifier_errors, action="warn"),
    "engine_drift": Guard(check=engine_drift, action="stop"),
}
"""To add one: a function of the history, the line here, a test that provokes it and one that does not, a mutation."""


@dataclass(slots=True)
class Watch:
    """The guards of a run; remembers which spoke, so that one trouble is told once and not at every step."""

    settings: GuardsConfig
    spoke: dict[str, int] = field(default_factory=dict[str, int])
    """Guard -> step at which it last spoke; part of a checkpoint."""

    def __post_init__(self) -> None:
        unknown = sorted(self.settings.actions.keys() - GUARDS.keys())
        if unknown:
            raise ConfigError(f"guards.actions: no guard is called {unknown[0]!r}; known: {', '.join(GUARDS)}")

    def look(self, steps: Sequence[StepReport], validations: Sequence[Validation]) -> list[Finding]:
        """Return what the guards find after the newest step; nothing before the first."""
        if not steps:
            return []
        history = History(steps=steps, validations=validations, settings=self.settings)
        findings: list[Finding] = []
        for name, guard in GUARDS.items():
            action = self.settings.actions.get(name, guard.action)
            now = steps[-1].step
            is_quiet = name in self.spoke and now - self.spoke[name] < self.settings.quiet_steps
            if action == "off" or is_quiet:
                continue
            evidence = guard.check(history)
            if evidence is not None:
                self.spoke[name] = now
                findings.append(Finding(guard=name, evidence=evidence, action=action))
        return findings


def _has_reward(report: StepReport) -> bool:
    return math.isfinite(report.metrics.get("reward/mean", math.nan))
