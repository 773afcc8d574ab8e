"""Rejection-sampling fine-tuning: which of a policy's own completions are worth imitating.

Knows rollouts and verdicts; no model, no verifier. What is kept becomes supervised examples as token ids, with what tools
returned left out of the loss. Source: RFT, arXiv:2308.01825; CoRT, arXiv:2506.09820, section 3 (right and well-behaved).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from edge_rl.offline.sft import SftExample
from edge_rl.types import ExecutionStatus, Rollout, StopReason, Verdict

Fate = Literal["kept", "wrong", "unfinished", "failed_code", "lucky", "duplicate", "surplus"]
"""kept; wrong or unjudged; not ended by the policy itself; code that failed; a result that is not the answer; the same text
as a kept one; more than enough of this question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was kept, and what became of the rest."""

    kept: tuple[Rollout, ...]
    fates: Counter[Fate]
    """Completions by fate; the sum is their number."""
    num_questions: int
    """Questions with at least one kept completion."""


def select(
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Verdict],
    *,
    per_question: int,
    agrees: Callable[[Rollout], bool],
) -> Selection:
    """Return the completions to imitate: right, ended by the policy, no failed code, no twins, the shortest of a question.

    `agrees` says of a completion that ran code whether what the code printed last is the answer: one that is right in
    spite of its code was lucky. At most `per_question` are kept, so that easy questions do not outweigh hard ones.
    """
    fates: Counter[Fate] = Counter()
    good: dict[str, list[Rollout]] = {}
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        fate = _fault(rollout, verdict, agrees)
        if fate is not None:
            fates[fate] += 1
        else:
            good.setdefault(rollout.prompt.sample_id, []).append(rollout)
    kept: list[Rollout] = []
    for candidates in good.values():
        different: dict[str, Rollout] = {}
        for rollout in sorted(candidates, key=lambda rollout: (rollout.num_policy_tokens, rollout.member)):
            different.setdefault(" ".join(rollout.text.split()), rollout)
        fates["duplicate"] += len(candidates) - len(different)
        chosen = [*different.values()][:per_question]
        fates["surplus"] += len(different) - len(chosen)
        kept += chosen
    fates["kept"] += len(kept)
    return Selection(kept=tuple(kept), fates=+fates, num_questions=len(good))


def example_of(rollout: Rollout) -> SftExample:
    """Return a completion as a supervised example: the very tokens that were sampled, those of tools not learnt."""
    return SftExample(
        prompt_ids=rollout.prompt.token_ids, completion_ids=rollout.token_ids, completion_mask=rollout.loss_mask
    )


def _fault(rollout: Rollout, verdict: Verdict, agrees: Callable[[Rollout], bool]) -> Fate | None:
    if verdict.correct is not True:
        return "wrong"
    if rollout.stop_reason is not StopReason.STOP:
        return "unfinished"
    if any(execution.status is not ExecutionStatus.OK for execution in rollout.executions):
        return "failed_code"
    if rollout.executions and not agrees(rollout):
        return "lucky"
    return None
