"""Reads a run and says in plain sentences what happens, why, and the one thing to do. Knows numbers and settings; no model.

A rule looks at the facts of a run and returns a diagnosis or nothing. Rules know nothing of each other; where several speak,
the most serious come first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import fmean

from edge_rl.config import Config
from edge_rl.monitor.guards import Validation
from edge_rl.types import Estimate, EvalReport, StepReport

RECENT = 5
"""Steps that "now" means."""


class Severity(IntEnum):
    """How much it matters."""

    NOTE = 0
    """Nothing is wrong; people ask about it."""
    WARNING = 1
    """It works, but worse than it could."""
    PROBLEM = 2
    """The run does not do what it is meant to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run."""

    config: Config
    steps: Sequence[StepReport] = ()
    validations: Sequence[Validation] = ()
    tests: Mapping[str, EvalReport] = field(default_factory=dict[str, EvalReport])
    """By name: base, warm start, tuned, GGUF ..."""
    differences: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Paired differences of pass@1 by name: tuned_vs_base, tuned_vs_warm_start, gguf_vs_tuned; of pass@8 with at_8_."""
    num_train: int = 0
    """Training samples."""
    has_tools: bool = False
    """Whether any sample names a tool."""
    phase: str = ""
    """Last phase of the heartbeat, empty before the first."""
    is_alive: bool = False

    def values(self, metric: str, last: int | None = None) -> list[float]:
        """Return the finite values of a metric in order, or the newest `last` of them."""
        found = [report.metrics[metric] for report in self.steps if metric in report.metrics]
        found = [value for value in found if math.isfinite(value)]
        return found if last is None else found[-last:]

    def now(self, metric: str) -> float | None:
        """Return the mean of the newest steps, None where the metric was never measured."""
        found = self.values(metric, RECENT)
        return fmean(found) if found else None

    def share(self, part: str, whole: str) -> float | None:
        """Return part / whole over the newest steps."""
        parts, wholes = self.values(part, RECENT), self.values(whole, RECENT)
        return sum(parts) / sum(wholes) if parts and sum(wholes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a rule says."""

    rule: str
    severity: Severity
    what: str
    """What happens, with the number."""
    why: str
    do: str
    """The one thing to do."""


Words = tuple[Severity, str, str, str]
"""Severity, what, why, what to do."""
Rule = Callable[[Facts], Words | None]


def diagnose(facts: Facts) -> list[Diagnosis]:
    """Return what the rules say, the most serious first."""
    found: list[Diagnosis] = []
    for name, rule in RULES.items():
        words = rule(facts)
        if words is not None:
            severity, what, why, do = words
            found.append(Diagnosis(rule=name, severity=severity, what=what, why=why, do=do))
    return sorted(found, key=lambda diagnosis: -diagnosis.severity)


# -- the loss and the gradient ---------------------------------------------------------------------------------------


def _loss_zero(facts: Facts) -> Words | None:
    losses, norm = facts.values("loss/value", RECENT), facts.now("loss/grad_norm")
    if not losses or not norm or max(map(abs, losses)) > 0.05 or facts.config.learning.epochs > 1:
        return None
    return (
        Severity.NOTE,
        f"The loss prints about 0 ({losses[-1]:.4f}) while the gradient has norm {norm:.2f}.",
        "With one pass over on-policy rollouts the ratio is 1 and the advantages of a group add up to 0, so the value of "
        "the loss says nothing; its gradient does the learning.",
        "Look at the solve rate and the validation instead.",
    )


def _no_signal(facts: Facts) -> Words | None:
    live = facts.values("learning/live_rollouts", RECENT)
    if len(live) < 2 or max(live) > 0:
        return None
    return (
        Severity.PROBLEM,
        f"No rollout of the last {len(live)} steps moved the adapter.",
        "In every group all rewards were equal (all right, all wrong, or all unjudged), and equal rewards give no gradient.",
        "Choose questions that the model solves sometimes: `edge-rl probe` shows which.",
    )


def _few_live_groups(facts: Facts) -> Words | None:
    share = facts.share("groups/live", "groups/count")
    if share is None or share == 0 or share >= 0.4:
        return None
    return (
        Severity.WARNING,
        f"Only {share:.0%} of the groups hold both right and wrong answers.",
        "The others cost a rollout and teach nothing.",
        "Set rollout.max_resample_rounds=3, or drop questions that are always or never solved (`edge-rl probe`).",
    )


def _skipped(facts: Facts) -> Words | None:
    skipped = sum(facts.values("loss/skipped"))
    if not skipped:
        return None
    return (
        Severity.PROBLEM,
        f"{skipped:.0f} updates were dropped because the gradient was not finite.",
        "Usually float16 overflows, or the learning rate is so high that the policy breaks.",
        "Set model.dtype=bfloat16 where the GPU has it, else float32; if it is that already, halve the learning rate.",
    )


def _gradient_clipped(facts: Facts) -> Words | None:
    norms = facts.values("loss/grad_norm", RECENT)
    limit = facts.config.learning.max_grad_norm
    if len(norms) < 3 or min(norms) < 10 * limit:
        return None
    return (
        Severity.WARNING,
        f"The gradient norm is {fmean(norms):.1f}, more than ten times the clip of {limit:g}, at every step.",
        "Each step then has the same length whatever the data say, and single rollouts decide its direction.",
        "Take more prompts per step, or a lower learning rate.",
    )


def _ratio_clipped(facts: Facts) -> Words | None:
    high, low = facts.now("loss/clip_high"), facts.now("loss/clip_low")
    if high is None or low is None or high + low < 0.2:
        return None
    return (
        Severity.WARNING,
        f"{high + low:.0%} of the tokens are clipped and learn nothing.",
        "The policy moves far within one step: too many epochs, or too high a learning rate.",
        "Set learning.epochs=1, or halve the learning rate.",
    )


def _kl_high(facts: Facts) -> Words | None:
    kl = facts.now("loss/kl")
    if kl is None or kl < 0.5 * facts.config.guards.max_kl:
        return None
    return (
        Severity.WARNING,
        f"The policy is {kl:.2f} nats per token away from its reference.",
        "So far from the base it forgets what else it could do.",
        "Double learning.kl_coefficient, or take an earlier checkpoint.",
    )


def _drift(facts: Facts) -> Words | None:
    drift = facts.now("drift/mean")
    if drift is None or drift < 0.5 * facts.config.guards.max_drift:
        return None
    return (
        Severity.PROBLEM,
        f"Engine and trainer give the sampled tokens log-probabilities that differ by {drift:.3f} nats on average.",
        "The rollouts then come from another policy than the one that is trained: another precision, another "
        "quantisation, or an adapter that the engine did not take.",
        "Give both the same dtype and base; if they have, report it as a bug with this run's manifest.json.",
    )


# -- what the policy writes ------------------------------------------------------------------------------------------


def _never_right(facts: Facts) -> Words | None:
    solved = facts.values("reward/solve_rate")
    if len(solved) < 2 or fmean(solved[-RECENT:]) >= 0.02:
        return None
    return (
        Severity.PROBLEM,
        f"{fmean(solved[-RECENT:]):.1%} of the training rollouts are right.",
        "Reinforcement only makes more frequent what the model already finds now and then; from nothing it learns nothing.",
        "Write hinted traces and warm-start on them (warm_start.kind=sft), or take easier questions first.",
    )


def _nearly_always_right(facts: Facts) -> Words | None:
    solved = facts.now("reward/solve_rate")
    if solved is None or solved < 0.9 or len(facts.steps) < 2:
        return None
    return (
        Severity.WARNING,
        f"{solved:.0%} of the training rollouts are right.",
        "Groups that are all right carry no signal, so there is little left to learn from these questions.",
        "Add harder questions, or stop here.",
    )


def _format(facts: Facts) -> Words | None:
    share = facts.now("signal/format")
    if share is None or share >= 0.5:
        return None
    return (
        Severity.PROBLEM,
        f"Only {share:.0%} of the completions commit to exactly one marked answer.",
        "The verifier then judges what it can guess, or nothing: the model does not know the answer format.",
        "Say the format in data.system with an example, or warm-start on traces that show it.",
    )


def _truncated(facts: Facts) -> Words | None:
    share = facts.now("rollout/truncated")
    if share is None or share < 0.3:
        return None
    return (
        Severity.PROBLEM if share > 0.5 else Severity.WARNING,
        f"{share:.0%} of the completions are cut at rollout.max_tokens = {facts.config.rollout.max_tokens}.",
        "A cut answer counts as wrong, so the run learns to be short before it learns to be right.",
        "Raise rollout.max_tokens to about the 95th percentile of what the model writes (`edge-rl probe` measures it).",
    )


def _garbled(facts: Facts) -> Words | None:
    share = facts.now("rollout/garbled")
    if share is None or share < 0.05:
        return None
    return (
        Severity.WARNING,
        f"{share:.0%} of the completions are loops, noise or broken characters.",
        "The policy is damaged: too high a learning rate, too high a temperature, or a quantised base that is too coarse.",
        "Halve the learning rate and start from an earlier checkpoint.",
    )


def _unjudged(facts: Facts) -> Words | None:
    share = facts.share("rollout/unjudged", "rollout/count")
    if share is None or share < 0.05:
        return None
    return (
        Severity.PROBLEM,
        f"{share:.0%} of the completions could not be judged.",
        "A verifier failed or ran out of time; those completions are in no mean.",
        "Read the reasons in samples/step-*.jsonl, and try one with `edge-rl verify --kind ... --gold ... --completion ...`.",
    )


def _entropy_low(facts: Facts) -> Words | None:
    entropy = facts.now("loss/entropy")
    if entropy is None or entropy >= 2 * facts.config.guards.min_entropy:
        return None
    return (
        Severity.WARNING,
        f"Entropy is {entropy:.3f} nats per token: the eight answers to a question are nearly the same.",
        "Without variety there is nothing to choose from, and pass@8 falls to pass@1.",
        "Lower the learning rate, raise learning.clip_high to 0.3 or more, or add a small learning.kl_coefficient.",
    )


def _entropy_high(facts: Facts) -> Words | None:
    entropy = facts.now("loss/entropy")
    if entropy is None or entropy <= 3.0:
        return None
    return (
        Severity.PROBLEM,
        f"Entropy is {entropy:.1f} nats per token: the policy writes nearly at random.",
        "A base without instruction tuning, a wrong chat template, or a damaged adapter.",
        "Look at samples/step-0.jsonl; choose an instruct model, or warm-start.",
    )


def _no_code(facts: Facts) -> Words | None:
    share = facts.now("rollout/code_share")
    if not facts.has_tools or share is None or share >= 0.1:
        return None
    return (
        Severity.WARNING,
        f"Only {share:.0%} of the completions run code, though the samples offer a tool.",
        "A model that never calls the tool cannot be rewarded for calling it.",
        "Warm-start on hinted traces that call it, or show a call in data.system.",
    )


def _code_fails(facts: Facts) -> Words | None:
    share = facts.now("rollout/code_failed")
    if share is None or share < 0.3:
        return None
    return (
        Severity.WARNING,
        f"In {share:.0%} of the completions with code every block fails.",
        "Errors in the code, a time limit that is too short, or something the sandbox does not allow.",
        "Read `executions` in samples/step-*.jsonl; raise rollout.tool_timeout_s if they say timeout.",
    )


# -- held out --------------------------------------------------------------------------------------------------------


def _not_carried_over(facts: Facts) -> Words | None:
    solved = facts.values("reward/solve_rate")
    if len(facts.validations) < 2 or len(solved) < 6:
        return None
    rise = fmean(solved[-3:]) - fmean(solved[:3])
    gain = facts.validations[-1].pass_at_1 - facts.validations[0].pass_at_1
    if rise < 0.1 or gain > 0.2 * rise:
        return None
    return (
        Severity.PROBLEM,
        f"Training questions are solved {rise:+.0%} more often, validation moved by {gain:+.0%}.",
        "The run learns these questions by heart, or something that pays in training only.",
        "Add questions with other wordings, and read what is rewarded in samples/.",
    )


def _best_was_early(facts: Facts) -> Words | None:
    if len(facts.validations) < 3:
        return None
    best = max(facts.validations, key=lambda item: item.pass_at_1)
    last = facts.validations[-1]
    if best.step > last.step / 2 or best.pass_at_1 - last.pass_at_1 < 0.03:
        return None
    return (
        Severity.NOTE,
        f"Validation was best after {best.step} of {last.step} steps ({best.pass_at_1:.0%}, now {last.pass_at_1:.0%}).",
        "Small data is learned early; later steps fit its accidents. The best adapter was kept.",
        f"Next time set --steps {max(best.step, 1)} or lower the learning rate.",
    )


def _no_proof(facts: Facts) -> Words | None:
    for name, other in (("tuned_vs_warm_start", "the warm start"), ("tuned_vs_base", "the base")):
        difference = facts.differences.get(name)
        if difference is not None and difference.low <= 0:
            interval = f"{difference.low:+.1%} to {difference.high:+.1%}"
            return (
                Severity.PROBLEM,
                f"The tuned model is {difference.value:+.1%} against {other} ({interval}).",
                "The interval holds 0: on so many test questions this difference can be chance.",
                "Train longer or on more questions, or measure on more test questions before you claim a gain.",
            )
    return None


def _pass_at_8_fell(facts: Facts) -> Words | None:
    difference = facts.differences.get("at_8_tuned_vs_warm_start") or facts.differences.get("at_8_tuned_vs_base")
    if difference is None or difference.high >= 0:
        return None
    interval = f"{difference.low:+.0%} to {difference.high:+.0%}"
    return (
        Severity.WARNING,
        f"Held-out pass@8 fell by {-difference.value:.0%} ({interval}) while the policy was tuned.",
        "The policy gave up answers that it could find in eight tries for those that it finds at once.",
        "Take fewer steps, a higher learning.clip_high, or a small learning.kl_coefficient.",
    )


def _gguf_worse(facts: Facts) -> Words | None:
    difference = facts.differences.get("gguf_vs_tuned")
    if difference is None or difference.high >= 0:
        return None
    return (
        Severity.PROBLEM,
        f"The GGUF scores {difference.value:+.1%} against the model it was made from.",
        "Quantisation costs more than it should, or the program that runs it uses another prompt.",
        "Use the f16 file, and check the chat template in the program that you run it with.",
    )


# -- the run itself --------------------------------------------------------------------------------------------------


def _stopped(facts: Facts) -> Words | None:
    if not facts.phase or facts.phase == "done" or facts.is_alive:
        return None
    return (
        Severity.PROBLEM,
        f"The process that trained is gone; it last was at: {facts.phase}.",
        "It was stopped, killed, or ran out of memory.",
        "Run the same command again: it goes on from the last checkpoint.",
    )


def _warming_up(facts: Facts) -> Words | None:
    warmup = facts.config.learning.warmup_steps
    if not facts.steps or len(facts.steps) > warmup:
        return None
    return (
        Severity.NOTE,
        f"{len(facts.steps)} steps are done and the learning rate rises over {warmup}.",
        "The first steps are small on purpose.",
        "Wait for some more steps before you judge.",
    )


def _not_all_seen(facts: Facts) -> Words | None:
    drawn = sum(facts.values("groups/count"))
    if facts.phase != "done" or not drawn or drawn >= facts.num_train:
        return None
    return (
        Severity.NOTE,
        f"The run drew {drawn:.0f} prompts and there are {facts.num_train} training samples.",
        "Some samples were never seen.",
        "More steps or more prompts per step would use all of them.",
    )


def _slow_part(facts: Facts) -> Words | None:
    rollout, step = facts.now("seconds/rollout"), facts.now("seconds/step")
    if not rollout or not step or rollout / step < 0.8:
        return None
    return (
        Severity.NOTE,
        f"{rollout / step:.0%} of a step goes into writing rollouts ({rollout:.0f} of {step:.0f} s).",
        "Long completions, or few of them decoded at once.",
        "Lower rollout.max_tokens, raise rollout.slots, or turn on chunks (rollout.chunk_tokens) where lengths differ much.",
    )


RULES: Mapping[str, Rule] = {
    "stopped": _stopped,
    "no_signal": _no_signal,
    "never_right": _never_right,
    "skipped": _skipped,
    "drift": _drift,
    "format": _format,
    "unjudged": _unjudged,
    "entropy_high": _entropy_high,
    "not_carried_over": _not_carried_over,
    "no_proof": _no_proof,
    "gguf_worse": _gguf_worse,
    "truncated": _truncated,
    "few_live_groups": _few_live_groups,
    "nearly_always_right": _nearly_always_right,
    "entropy_low": _entropy_low,
    "garbled": _garbled,
    "no_code": _no_code,
    "code_fails": _code_fails,
    "gradient_clipped": _gradient_clipped,
    "ratio_clipped": _ratio_clipped,
    "kl_high": _kl_high,
    "pass_at_8_fell": _pass_at_8_fell,
    "loss_zero": _loss_zero,
    "best_was_early": _best_was_early,
    "warming_up": _warming_up,
    "not_all_seen": _not_all_seen,
    "slow_part": _slow_part,
}
"""To add one: a function of the facts, the line here, a test with facts that call it and facts that do not."""
