"""Rewards by local models, on tiny random ones made on the spot."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from edge_rl.config import ScoringConfig
from edge_rl.errors import ModelError
from edge_rl.scoring import model_rewards
from edge_rl.scoring.group_rewards import RewardContext, make_reward
from edge_rl.scoring.scorer import Scorer
from edge_rl.types import Group, Reward, Sample, Verdict
from tests.builders import make_rollout, policy
from tests.builders_models import save_tiny_model, tiny_tokenizer

SAMPLE = Sample(id="s", question="What is 12 * 34?", answer="408")
TEXTS = ("The answer is 408.", "the quick brown fox", "no")


def _rewards(settings: ScoringConfig, *texts: str) -> list[Reward]:
    rollouts = [make_rollout(policy(1), policy_text=text) for text in texts]
    verdicts = [Verdict(correct=False, reason="by hand")] * len(texts)
    return make_reward(RewardContext(samples={"s": SAMPLE}, settings=settings))(rollouts, verdicts)


def _classifier(folder: Path, *, outputs: int) -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=2,
    )
    config.num_labels = outputs
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


@torch.no_grad()
def test_reward_model_is_the_logistic_function_of_its_logit(tmp_path: Path) -> None:
    model = _classifier(tmp_path, outputs=1)
    model.score.weight.mul_(30)  # so that the three texts differ
    model.save_pretrained(tmp_path)
    rewards = _rewards(ScoringConfig(reward="reward_model", reward_model=str(tmp_path)), *TEXTS)
    alone = [
        float(model(torch.tensor([tiny_tokenizer().encode(f"{SAMPLE.question}\n{text}")])).logits.sigmoid())
        for text in TEXTS
    ]
    assert [reward.total for reward in rewards] == pytest.approx(alone, abs=1e-5)
    assert max(alone) - min(alone) > 0.01
    assert rewards[0].breakdown == {"reward_model": rewards[0].total}


def test_reward_model_with_two_outputs_is_refused(tmp_path: Path) -> None:
    _classifier(tmp_path, outputs=2)
    with pytest.raises(ModelError, match="2 outputs; expected one"):
        _rewards(ScoringConfig(reward="reward_model", reward_model=str(tmp_path)), *TEXTS)


def test_reward_model_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere.* of the reward"):
        _rewards(ScoringConfig(reward="reward_model", reward_model=str(tmp_path / "nowhere")), *TEXTS)


def test_a_judge_that_names_no_score_leaves_the_completion_unrewarded(tmp_path: Path) -> None:
    """A random model does not follow the form; its reply must not become a number."""
    folder = save_tiny_model(tmp_path / "judge")
    rewards = _rewards(ScoringConfig(reward="judge", judge_model=str(folder)), "408")
    assert rewards == [Reward(total=None)]


def test_the_audit_judge_is_logged_and_never_enters_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"judge": "Score: 9", "audit": "Score: 4"}

    def chat(name: str) -> Callable[[str], str]:
        return lambda prompt: replies[name]

    monkeypatch.setattr(model_rewards, "_chat", chat)
    settings = ScoringConfig(reward="judge", judge_model="judge", audit_model="audit")
    rollout = make_rollout(policy(1), policy_text=r"\boxed{408}")
    group = Group(id="g", sample_id="s", rollouts=(rollout,), born=0)
    (scored,) = Scorer({"s": SAMPLE}, settings).score([group])
    (reward,) = scored.rewards
    assert reward.total == 0.9
    assert reward.breakdown == {"judge": 0.9}
    assert reward.signals == {"audit": 0.4, "audit_gap": pytest.approx(0.5), "format": 1.0}
    replies["audit"] = "I cannot say"
    assert _rewards(settings, "408")[0] == Reward(total=0.9, breakdown={"judge": 0.9})
    with_parts = settings.model_copy(update={"reward": "weighted", "weights": {"judge": 1.0}})
    replies["audit"] = "Score: 2"
    assert _rewards(with_parts, "408")[0].signals == {"audit": 0.2, "audit_gap": pytest.approx(0.7)}
