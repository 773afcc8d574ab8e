"""Runs verifiers and the reward over groups. Knows no engine; what the policy wrote arrives as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from edge_rl.config import ScoringConfig
from edge_rl.errors import DataError, EdgeRLError, VerifierError, boundary
from edge_rl.scoring.calls import read_wanted, write_calls
from edge_rl.scoring.group_rewards import RewardContext, make_reward
from edge_rl.scoring.pool import NUM_CHILDREN, one_verdict, start_pool
from edge_rl.scoring.rewards import is_marked
from edge_rl.scoring.verifiers import get_verifier
from edge_rl.types import (
    Group,
    Interpreter,
    Reward,
    Rollout,
    Sample,
    ScoredGroup,
    StopReason,
    Verdict,
    derive_seed,
)

ALGEBRA_KINDS = frozenset(["math", "set", "tuple", "interval", "python", "regex"])


class Scorer:
    """Judges rollouts against their samples and turns verdicts into rewards."""

    def __init__(
        self,
        samples: Mapping[str, Sample],
        settings: ScoringConfig,
        *,
        interpreter: Interpreter | None = None,
        policy: str = "",
    ) -> None:
        """`interpreter` runs code for kinds that need it; `policy` names the model that is trained, for the judge."""
        self._samples = samples
        self._settings = settings
        self._interpreter = interpreter
        self._reward = make_reward(RewardContext(samples=samples, settings=settings, policy=policy))
        if any(sample.kind in ALGEBRA_KINDS for sample in samples.values()):
            start_pool()

    def judge(self, rollout: Rollout) -> Verdict:
        """Return the verdict on what the policy itself wrote; tool output is no commitment.

        Truncated and garbled rollouts are wrong; one that the engine failed on, or whose verifier failed, is unjudged.
        """
        if rollout.stop_reason is StopReason.LENGTH:
            return Verdict(correct=False, reason="truncated", route="stop_reason")
        if rollout.stop_reason is StopReason.GARBLED:
            return Verdict(correct=False, reason="garbled", route="stop_reason")
        if rollout.stop_reason is StopReason.ERROR:
            return Verdict(correct=None, reason="generation failed", route="stop_reason")
        if rollout.prompt.sample_id not in self._samples:
            raise DataError(f"group {rollout.group_id}: sample {rollout.prompt.sample_id!r} is not known to the scorer")
        return judge_text(rollout.policy_text, self._samples[rollout.prompt.sample_id], self._interpreter)

    def score(self, groups: Sequence[Group]) -> list[ScoredGroup]:
        """Return each group with a verdict and a reward per rollout, in order.

        A reward that cannot be computed leaves its group unrewarded (None); it never becomes 0.
        Raises: DataError if a group is unfinished or its sample unknown.
        """
        for group in groups:
            if not group.is_finished:
                raise DataError(f"group {group.id} still has unfinished rollouts; score it when all have stopped")
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        # Threads wait for the worker pool; what runs in this process is quick and holds the interpreter lock anyway.
        with ThreadPoolExecutor(max_workers=NUM_CHILDREN) as threads:
            verdicts = iter(list(threads.map(self._judge_for_training, rollouts)))
        return [self._score(group, tuple(next(verdicts) for _ in group.rollouts)) for group in groups]

    def _judge_for_training(self, rollout: Rollout) -> Verdict:
        """Return `judge`, unless the run is a control experiment, or leaves truncated rollouts out (DAPO's overlong filter)."""
        if self._settings.control == "random":
            coin = derive_seed(0, "control", rollout.group_id, rollout.member) % 2
            return Verdict(correct=bool(coin), reason="a coin flip: control experiment", route="control")
        if self._settings.control == "format":
            marked = format_signal(rollout.policy_text).get("format", 0.0)
            return Verdict(correct=bool(marked), reason="the format only: control experiment", route="control")
        if rollout.stop_reason is StopReason.LENGTH and self._settings.truncated == "left_out":
            return Verdict(correct=None, reason="truncated, left out", route="stop_reason")
        return self.judge(rollout)

    def _score(self, group: Group, verdicts: tuple[Verdict, ...]) -> ScoredGroup:
        try:
            rewards = tuple(self._reward(group.rollouts, verdicts))
        except VerifierError as error:
            rewards = tuple(Reward(total=None) for _ in group.rollouts)
            verdicts = tuple(Verdict(correct=None, reason=str(error), route="reward_failed") for _ in verdicts)
        rewards = tuple(
            replace(reward, signals={**reward.signals, **format_signal(rollout.policy_text)})
            for reward, rollout in zip(rewards, group.rollouts, strict=True)
        )
        return ScoredGroup(group=group, verdicts=verdicts, rewards=rewards)


def format_signal(completion: str) -> dict[str, float]:
    """Return {"format": 1 or 0}, or nothing where the text cannot be read.

    A format that is lost while the reward rises is a thing to see, whatever the reward.
    """
    try:
        with boundary(VerifierError, "format"):
            return {"format": float(is_marked(completion))}
    except VerifierError:
        return {}


def judge_text(completion: str, sample: Sample, interpreter: Interpreter | None = None) -> Verdict:
    """Return the verdict of the sample's verifier; a verifier that fails leaves the completion unjudged.

    Raises: ConfigError if the sample's kind does not exist.
    """
    try:
        verifier = get_verifier(sample.kind, interpreter)
        with boundary(VerifierError, f"verifier {sample.kind}"), one_verdict():
            return verifier(completion, sample)
    except (VerifierError, DataError) as error:
        return Verdict(correct=None, reason=str(error), route="verifier_failed")
    except EdgeRLError as error:
        if isinstance(error, ValueError):
            raise
        return Verdict(correct=None, reason=str(error), route="verifier_failed")


def gold_check(samples: Iterable[Sample], interpreter: Interpreter | None = None) -> None:
    """Check that each sample's verifier accepts its gold answer and rejects the empty completion.

    A kind whose gold answer is no completion (a pattern, constraints, a user's function) is asked about options["example"]
    where the sample has one. A kind that runs code is left out where there is no interpreter.
    Raises: DataError naming the first sample that fails; ConfigError for a kind that does not exist.
    """
    for sample in samples:
        if sample.kind == "code" and interpreter is None:
            continue
        completion = gold_completion(sample)
        if completion is not None:
            verdict = judge_text(completion, sample, interpreter)
            if verdict.correct is not True:
                raise DataError(
                    f"sample {sample.id}: its verifier {sample.kind!r} does not accept its own answer "
                    f"{sample.answer[:80]!r} ({verdict.reason}); correct the answer or choose another kind"
                )
        empty = judge_text("", sample, interpreter)
        if empty.correct is not False:
            raise DataError(
                f"sample {sample.id}: its verifier {sample.kind!r} does not reject an empty completion "
                f"({empty.reason}); choose a stricter kind"
            )


def gold_completion(sample: Sample) -> str | None:
    """Return a completion that commits to the gold answer; None where the sample does not hold one."""
    if "example" in sample.options:
        return str(sample.options["example"])
    if sample.kind in GOLD_COMPLETIONS:
        return GOLD_COMPLETIONS[sample.kind](sample)
    return f"\\boxed{{{sample.answer}}}"


GOLD_COMPLETIONS: dict[str, Callable[[Sample], str | None]] = {
    "choice": lambda sample: f"\\boxed{{\\text{{{sample.answer}}}}}",
    "text": lambda sample: f"<answer>{sample.answer}</answer>",
    "regex": lambda sample: None,
    "constraints": lambda sample: None,
    "python": lambda sample: None,
    "all_of": lambda sample: None,
    "vote": lambda sample: None,
    "keywords": lambda sample: " ".join(sample.options.get("keywords", [sample.answer.replace(",", " ")])),
    "json": lambda sample: sample.answer or None,
    "tool_call": lambda sample: (
        write_calls(read_wanted(sample.answer, sample.id)) if sample.answer.strip() != "[]" else "No tool fits."
    ),
    "code": lambda sample: f"```python\n{sample.answer}\n```" if sample.answer.strip() else None,
    "code-output": lambda sample: sample.answer,
}
"""How a gold answer is written as a completion; kinds that are not listed put it into a box."""
