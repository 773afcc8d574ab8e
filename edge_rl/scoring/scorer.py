"""Runs verifiers and the reward over groups. Knows no engine; what the policy wrote arrives as text."""

from collections.abc import Iterable, Mapping, Sequence

from edge_rl.config import ScoringConfig
from edge_rl.errors import DataError, EdgeRLError, VerifierError, boundary
from edge_rl.scoring.rewards import get_reward
from edge_rl.scoring.verifiers import get_verifier
from edge_rl.types import Group, Rollout, Sample, ScoredGroup, StopReason, Verdict


class Scorer:
    """Judges rollouts against their samples."""

    def __init__(self, samples: Mapping[str, Sample], settings: ScoringConfig) -> None:
        self._samples = samples
        self._settings = settings
        self._reward = get_reward(settings.reward)

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
        return judge_text(rollout.policy_text, self._samples[rollout.prompt.sample_id])

    def score(self, groups: Sequence[Group]) -> list[ScoredGroup]:
        """Return each group with a verdict and a reward per rollout, in order.

        Raises: DataError if a group is unfinished or its sample unknown.
        """
        return [self._score(group) for group in groups]

    def _score(self, group: Group) -> ScoredGroup:
        if not group.is_finished:
            raise DataError(f"group {group.id} still has unfinished rollouts; score it when all have stopped")
        verdicts = tuple(self.judge(rollout) for rollout in group.rollouts)
        rewards = tuple(
            self._reward(rollout, verdict, self._settings)
            for rollout, verdict in zip(group.rollouts, verdicts, strict=True)
        )
        return ScoredGroup(group=group, verdicts=verdicts, rewards=rewards)


def judge_text(completion: str, sample: Sample) -> Verdict:
    """Return the verdict of the sample's verifier; a verifier that fails leaves the completion unjudged."""
    verifier = get_verifier(sample.kind)
    try:
        with boundary(VerifierError, f"verifier {sample.kind}"):
            return verifier(completion, sample)
    except EdgeRLError as error:
        return Verdict(correct=None, reason=str(error), route="verifier_failed")


def gold_check(samples: Iterable[Sample]) -> None:
    """Check that each sample's verifier accepts its gold answer and rejects the empty completion.

    Raises: DataError naming the first sample that fails.
    """
    for sample in samples:
        verdict = judge_text(gold_completion(sample), sample)
        if verdict.correct is not True:
            raise DataError(
                f"sample {sample.id}: its verifier {sample.kind!r} does not accept its own answer "
                f"{sample.answer[:80]!r} ({verdict.reason}); correct the answer or choose another kind"
            )
        if judge_text("", sample).correct is not False:
            raise DataError(
                f"sample {sample.id}: its verifier {sample.kind!r} does not reject an empty completion; "
                "choose a stricter kind"
            )


def gold_completion(sample: Sample) -> str:
    """Return a completion that commits to the gold answer."""
    return f"\\boxed{{{sample.answer}}}"
