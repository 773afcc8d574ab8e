"""Rewards that need more than one rollout's facts: samples, several parts, a user's file, a model. Knows no advantage."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_rl.config import ScoringConfig, suggest
from edge_rl.errors import ConfigError, VerifierError, boundary
from edge_rl.scoring.model_rewards import make_judge, make_reward_model
from edge_rl.scoring.rewards import REWARDS, get_reward, in_order, truncated_at
from edge_rl.scoring.user_code import load_file
from edge_rl.scoring.verifiers.code_output import judge_code_output
from edge_rl.types import ExecutionStatus, Reward, Rollout, Sample, Verdict

GroupReward = Callable[[Sequence[Rollout], Sequence[Verdict]], list[Reward]]
"""Rewards of the rollouts of one group, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a reward may look at besides the rollouts."""

    samples: Mapping[str, Sample]
    settings: ScoringConfig
    policy: str = ""
    """Name of the model that is trained, so that a judge of its own family is noticed."""


def make_reward(context: RewardContext) -> GroupReward:
    """Return the reward that the settings name: a name of REWARDS or GROUP_REWARDS, or `file.py:function`.

    Raises: ConfigError if there is no such reward or a setting of it is missing.
    """
    return _named(context.settings.reward, context)


def progress(context: RewardContext) -> GroupReward:
    """Return 1 for a right completion; for a wrong one, progress_weight times the share of turns that went well.

    A turn went well if its code ran and, where the sample lists options["turn_outputs"], printed the wanted state.
    Source: Environment Tuning, arXiv:2510.10197 (mean over turns of state_ok * exec_ok); the gate is ours.
    """

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        results: list[Reward] = []
        for rollout, verdict in zip(rollouts, verdicts, strict=True):
            if verdict.correct is None:
                results.append(Reward(total=None))
                continue
            share = turn_share(rollout, context.samples[rollout.prompt.sample_id])
            part = 0.0 if verdict.correct else context.settings.progress_weight * share
            correctness = float(verdict.correct)
            results.append(Reward(total=correctness + part, breakdown={"correctness": correctness, "progress": part}))
        return results

    return reward


def turn_share(rollout: Rollout, sample: Sample) -> float:
    """Return the share of wanted turns that went well; without a wanted list, of the turns taken; 0 for no turn."""
    wanted: Sequence[str] = sample.options.get("turn_outputs", ())
    count = len(wanted) or len(rollout.executions)
    good = 0
    for place, execution in enumerate(rollout.executions[:count]):
        state_ok = not wanted or bool(
            judge_code_output(execution.stdout, Sample(id="turn", question="-", answer=wanted[place])).correct
        )
        good += execution.status is ExecutionStatus.OK and state_ok
    return good / count if count else 0.0


def dler_difficulty(context: RewardContext) -> GroupReward:
    """Return `dler_truncation` with the limit length_easy where at least half of the judged are right, else length_high.

    Source: DA-DLER, arXiv:2510.15110 (2,000 tokens from half right up, else 4,000).
    """

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        judged = [verdict.correct for verdict in verdicts if verdict.correct is not None]
        settings = context.settings
        limit = settings.length_easy if judged and 2 * sum(judged) >= len(judged) else settings.length_high
        return [
            truncated_at(limit, rollout, verdict, settings) for rollout, verdict in zip(rollouts, verdicts, strict=True)
        ]

    return reward


def code_similarity(context: RewardContext) -> GroupReward:
    """Return 1 for a right completion; for a wrong one, similarity_weight times how alike its code is to that of the right.

    The mean over the right members of the group that ran code. Source: GTPO, arXiv:2511.14846 (weight 0.5). It compares
    embeddings; here it is the share of code tokens that both have (Jaccard), which needs no second model.
    """

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        codes = [code_tokens(rollout.policy_text) for rollout in rollouts]
        right = [code for code, verdict in zip(codes, verdicts, strict=True) if verdict.correct and code]
        results: list[Reward] = []
        for code, verdict in zip(codes, verdicts, strict=True):
            if verdict.correct is None:
                results.append(Reward(total=None))
                continue
            correctness = float(verdict.correct)
            alike = 0.0
            if not verdict.correct and right:
                alike = sum(len(code & other) / len(code | other) for other in right) / len(right)
            part = context.settings.similarity_weight * alike
            results.append(Reward(total=correctness + part, breakdown={"correctness": correctness, "similarity": part}))
        return results

    return reward


def code_tokens(text: str) -> frozenset[str]:
    """Return the different words, numbers and signs in the python blocks of a completion."""
    blocks = re.findall(r"```python[ \t]*\n(.*?)```", text, flags=re.DOTALL)
    return frozenset(token for block in blocks for token in re.findall(r"\w+|[^\w\s]", block))


def weighted(context: RewardContext) -> GroupReward:
    """Return the sum of the rewards in scoring.weights, each times its weight, bounded so that correctness keeps its order."""
    weights = context.settings.weights
    if not weights or "weighted" in weights or any(weight < 0 for weight in weights.values()):
        raise ConfigError("scoring.weights needs weights from 0 up, such as {binary = 1.0, length_tanh = 0.5}")
    parts = {name: _named(name, context) for name in weights}
    middle = 0.5 * sum(weights.values())
    # The shaped rewards keep the order by themselves; a model or a user's function does not, so then both sides are bounded.
    is_ordered = all(name in REWARDS or name in ORDERED for name in weights)

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        columns = {name: part(rollouts, verdicts) for name, part in parts.items()}
        results: list[Reward] = []
        for place, verdict in enumerate(verdicts):
            totals = {name: column[place].total for name, column in columns.items()}
            values = {name: weights[name] * total for name, total in totals.items() if total is not None}
            signals = {key: value for column in columns.values() for key, value in column[place].signals.items()}
            if verdict.correct is None or len(values) < len(totals):
                results.append(Reward(total=None))
                continue
            plain = sum(values.values())
            total = plain if is_ordered else in_order(plain, verdict.correct, middle)
            if total != plain:
                values["order"] = total - plain
            results.append(Reward(total=total, breakdown=values, signals=signals))
        return results

    return reward


def user_function(context: RewardContext, reference: str) -> GroupReward:
    """Return the reward of a user's function with TRL's calling convention, named as `file.py:function`.

    It is called once per group: f(prompts=..., completions=..., **columns) -> list of numbers or None. Columns: id, answer,
    kind, completion_ids, and every option of the sample. Texts are plain strings.
    Raises: ConfigError if the file or function does not exist.
    """
    path, _, name = reference.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"scoring.reward {reference!r}: file {path!r} does not exist; write path/to/file.py:function")
    with boundary(ConfigError, f"scoring.reward {reference!r}"):
        function = getattr(load_file(path, Path(path).stat().st_mtime_ns), name)

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        del verdicts
        samples = [context.samples[rollout.prompt.sample_id] for rollout in rollouts]
        columns: dict[str, list[Any]] = {
            "id": [sample.id for sample in samples],
            "answer": [sample.answer for sample in samples],
            "kind": [sample.kind for sample in samples],
            "completion_ids": [list(rollout.token_ids) for rollout in rollouts],
        }
        for key in {key for sample in samples for key in sample.options} - columns.keys():
            columns[key] = [sample.options.get(key) for sample in samples]
        with boundary(VerifierError, f"reward {reference}"):
            values = list(
                function(
                    prompts=[sample.question for sample in samples],
                    completions=[rollout.policy_text for rollout in rollouts],
                    trainer_state=None,
                    log_extra=_ignore,
                    log_metric=_ignore,
                    **columns,
                )
            )
        if len(values) != len(rollouts):
            raise VerifierError(f"reward {reference} returned {len(values)} values for {len(rollouts)} completions")
        return [_from_number(value, name) for value in values]

    return reward


ORDERED = frozenset(["progress", "dler_difficulty", "code_similarity"])
"""Group rewards that never put a wrong completion above a right one, whatever their weight."""

GROUP_REWARDS: dict[str, Callable[[RewardContext], GroupReward]] = {
    "progress": progress,
    "dler_difficulty": dler_difficulty,
    "code_similarity": code_similarity,
    "weighted": weighted,
    "reward_model": lambda context: _from_scores(make_reward_model(context.settings), context, "reward_model"),
    "judge": lambda context: _from_scores(make_judge(context.settings, context.policy), context, "judge"),
}
"""Rewards that need the samples, other rewards or a model. To add one: a function of the context, and the line here."""


def _named(name: str, context: RewardContext) -> GroupReward:
    if ".py:" in name:
        return user_function(context, name)
    if name in GROUP_REWARDS:
        return GROUP_REWARDS[name](context)
    if name not in REWARDS:
        raise ConfigError(
            f"scoring.reward {name!r} does not exist; {suggest(name, sorted([*REWARDS, *GROUP_REWARDS]))} "
            "(or file.py:function)"
        )
    function = get_reward(name)
    return lambda rollouts, verdicts: [
        function(rollout, verdict, context.settings) for rollout, verdict in zip(rollouts, verdicts, strict=True)
    ]


def _from_scores(
    score: Callable[[Sequence[tuple[str, str, str]]], list[dict[str, float] | None]], context: RewardContext, name: str
) -> GroupReward:
    """Return a reward from a model's scores of (question, completion, answer); a score that failed is None."""

    def reward(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Reward]:
        del verdicts
        samples = [context.samples[rollout.prompt.sample_id] for rollout in rollouts]
        rows = [
            (sample.question, rollout.policy_text, sample.answer)
            for sample, rollout in zip(samples, rollouts, strict=True)
        ]
        return [Reward(total=None) if parts is None else _from_parts(parts, name) for parts in score(rows)]

    return reward


def _from_parts(parts: dict[str, float], name: str) -> Reward:
    signals = {key: value for key, value in parts.items() if key != "score"}
    return Reward(total=parts["score"], breakdown={name: parts["score"]}, signals=signals)


def _from_number(value: Any, name: str) -> Reward:
    if value is None:
        return Reward(total=None)
    number = float(value)
    # NaN is what a failed computation returns; it must not reach a mean.
    return Reward(total=None) if number != number else Reward(total=number, breakdown={name: number})


def _ignore(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
