"""PPO with a critic: the baseline that GRPO replaced. A value head on the policy's own hidden states, and GAE per token.

Groups mean nothing to it: every judged rollout is trained on, also where all of a group are right. Source: PPO,
arXiv:1707.06347; generalised advantage estimation, arXiv:1506.02438.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from edge_rl.config import LearningConfig
from edge_rl.learning.collate import Item, Microbatch
from edge_rl.learning.learner import Learner, is_trainable
from edge_rl.types import ScoredGroup

Key = tuple[str, int]
"""(group id, member): which rollout."""


def advantages_and_returns(
    values: Sequence[float], reward: float, *, discount: float, trace: float
) -> tuple[list[float], list[float]]:
    """Return GAE advantages and value targets of a rollout whose only reward comes with its last token.

    delta_t = r_t + discount V_{t+1} - V_t, A_t = delta_t + discount trace A_{t+1}, target_t = A_t + V_t; V is 0 behind the end.
    Source: arXiv:1506.02438, eq. 16. Example: values 0.5, 0.6, reward 1, discount and trace 1 -> advantages 0.5, 0.4.
    """
    advantages = [0.0] * len(values)
    following = later_value = 0.0
    for place in reversed(range(len(values))):
        step_reward = reward if place == len(values) - 1 else 0.0
        delta = step_reward + discount * later_value - values[place]
        following = delta + discount * trace * following
        advantages[place] = following
        later_value = values[place]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def whiten(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return all numbers less their mean, over their standard deviation; zeros where they are all equal."""
    flat = [value for row in rows for value in row]
    mean = math.fsum(flat) / len(flat)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / len(flat))
    return [[(value - mean) / deviation if deviation > 0 else 0.0 for value in row] for row in rows]


class PpoLearner(Learner):
    """A learner with a critic. The value head is part of its state, not of the adapter: it is needed in training only."""

    def __init__(self, model: PeftModel, settings: LearningConfig, *, temperature: float, pad_token_id: int) -> None:
        size = int(model.get_base_model().config.get_text_config().hidden_size)  # pyright: ignore
        self.critic = nn.Linear(size, 1).to(next(model.parameters()).device)
        with torch.no_grad():
            self.critic.weight.zero_()
            self.critic.bias.zero_()
        self._returns: dict[Key, list[float]] = {}
        super().__init__(model, settings, temperature=temperature, pad_token_id=pad_token_id)

    def state(self) -> dict[str, Any]:
        """Return what an exact resume needs besides the adapter: the value head, too."""
        return {**super().state(), "critic": self.critic.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        super().load_state(state)
        self.critic.load_state_dict(dict(state["critic"]))

    def _new_optimizer(self) -> torch.optim.AdamW:
        settings = self._settings
        return torch.optim.AdamW(
            [
                {"params": self._parameters},
                {"params": [*self.critic.parameters()], "factor": settings.critic_rate_factor},
            ],
            lr=settings.learning_rate,
            weight_decay=0.0,
        )

    def weigh(self, groups: Sequence[ScoredGroup]) -> list[list[Item]]:
        """Attach advantages by token, from the critic as it is now; keep the value targets for the loss."""
        rewards: dict[Key, float] = {}
        waiting: list[list[Item]] = []
        for group in groups:
            items: list[Item] = []
            for rollout, reward in zip(group.group.rollouts, group.rewards, strict=True):
                if reward.total is not None and is_trainable(rollout):
                    rewards[rollout.group_id, rollout.member] = reward.total
                    items.append(Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids)))
            if items:
                waiting.append(items)
        values = self._values(waiting)
        advantages: dict[Key, list[float]] = {}
        settings = self._settings
        for key, reward in rewards.items():
            advantages[key], self._returns[key] = advantages_and_returns(
                values[key], reward, discount=settings.gae_discount, trace=settings.gae_trace
            )
        if advantages:
            advantages = dict(zip(advantages, whiten([*advantages.values()]), strict=True))
        return [[_with_advantages(item, advantages[_key(item)]) for item in items] for items in waiting]

    @torch.no_grad()
    def _values(self, waiting: Sequence[Sequence[Item]]) -> dict[Key, list[float]]:
        """Return the critic's value before each policy token, by rollout."""
        found: dict[Key, list[float]] = {}
        for batch in self.batches(waiting):
            value_N = self._critic_values(self.hidden(batch))
            for index, item in enumerate(batch.items):
                found[_key(item)] = [float(value) for value in value_N[batch.rollout_N == index]]
        return found

    def _critic_values(self, hidden_NH: Tensor) -> Tensor:
        return self.critic(hidden_NH.float()).squeeze(1)

    def extra_loss(
        self, batch: Microbatch, hidden_NH: Tensor, num_tokens: int
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return value_weight times half the squared error of the critic, a mean over the tokens of the step."""
        target_N = torch.tensor(
            [value for item in batch.items for value in self._returns[_key(item)]], device=hidden_NH.device
        )
        # The policy's weights are for the policy: the critic reads its hidden states and does not move them.
        error_N = self._critic_values(hidden_NH.detach()) - target_N
        loss = 0.5 * (error_N**2).sum() / num_tokens
        spread = (target_N**2).sum().detach() / num_tokens
        return self._settings.value_weight * loss, {"critic": loss.detach(), "critic_target": spread}


def _key(item: Item) -> Key:
    return item.rollout.group_id, item.rollout.member


def _with_advantages(item: Item, advantages: Sequence[float]) -> Item:
    """Return the item with one advantage per policy token, 0 on the others."""
    own = iter(advantages)
    return Item(
        rollout=item.rollout,
        advantages=tuple(next(own) if is_policy else 0.0 for is_policy in item.rollout.loss_mask),
    )


def make_learner(model: PeftModel, settings: LearningConfig, *, temperature: float, pad_token_id: int) -> Learner:
    """Return the learner that the settings ask for: with a critic where credit = gae."""
    kind = PpoLearner if settings.credit == "gae" else Learner
    return kind(model, settings, temperature=temperature, pad_token_id=pad_token_id)
