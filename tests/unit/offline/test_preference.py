"""Pairs, their loss by hand, and what a round does to a tiny policy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from edge_rl.config import PreferenceConfig
from edge_rl.errors import DataError
from edge_rl.offline import preference
from edge_rl.offline.preference import Pair, dpo_loss, length_ratio, make_pairs, microbatch_size, prefer
from edge_rl.types import Prompt, Rollout, StopReason, Verdict
from tests.builders import make_rollout, policy, tool
from tests.builders_models import tiny_tokenizer
from tests.builders_policies import Policy, make_policy, plain_logprobs, trainable

RIGHT, WRONG, UNJUDGED = (Verdict(correct=value, reason="by hand") for value in (True, False, None))


def _rollout(question: str, member: int, *, tokens: int = 4, **fields: Any) -> Rollout:
    given: dict[str, Any] = {
        "prompt": Prompt(sample_id=question, token_ids=(1, 2)),
        "group_id": question,
        "member": member,
        "segments": (policy(*range(10, 10 + tokens)),),
        "stop_reason": StopReason.STOP,
    }
    return Rollout(**(given | fields))


def _members(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(pair.chosen.member, pair.rejected.member) for pair in pairs]


def _pairs(rollouts: list[Rollout], verdicts: list[Verdict], **settings: Any) -> list[Pair]:
    usual: dict[str, Any] = {"per_question": 2, "max_length_ratio": 2.0, "seed": 0}
    return make_pairs(rollouts, verdicts, **(usual | settings))


# -- pairs -----------------------------------------------------------------------------------------------------------


def test_a_right_completion_is_paired_with_a_wrong_one_each_once() -> None:
    rollouts = [_rollout("a", member) for member in range(6)]
    pairs = _pairs(rollouts, [RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG], per_question=5)
    assert len(pairs) == 3
    assert sorted(chosen for chosen, _ in _members(pairs)) == [0, 1, 2]
    assert sorted(rejected for _, rejected in _members(pairs)) == [3, 4, 5]


def test_a_question_gives_no_more_pairs_than_allowed_and_none_without_both_kinds() -> None:
    rollouts = [_rollout(question, member) for question in "abcd" for member in range(4)]
    verdicts = [RIGHT, RIGHT, WRONG, WRONG, *[RIGHT] * 4, *[WRONG] * 4, RIGHT, UNJUDGED, UNJUDGED, WRONG]
    pairs = _pairs(rollouts, verdicts, per_question=1)
    assert [pair.chosen.prompt.sample_id for pair in pairs] == ["a", "d"]
    assert _members(pairs)[1] == (0, 3)


def test_what_did_not_end_by_itself_is_in_no_pair() -> None:
    cut = _rollout("a", 1, stop_reason=StopReason.LENGTH)
    garbled = _rollout("a", 2, stop_reason=StopReason.GARBLED)
    assert _pairs([_rollout("a", 0), cut, garbled], [RIGHT, WRONG, WRONG]) == []


@pytest.mark.parametrize(("tokens", "expected"), [(8, 1), (9, 0), (2, 1), (1, 0)])
def test_unlike_lengths_make_no_pair(tokens: int, expected: int) -> None:
    rollouts = [_rollout("a", 0, tokens=4), _rollout("a", 1, tokens=tokens)]
    assert len(_pairs(rollouts, [RIGHT, WRONG])) == expected


def test_the_ratio_counts_what_the_policy_wrote() -> None:
    long = make_rollout(policy(1, 2), tool(*range(50)))
    assert length_ratio(long, make_rollout(policy(1, 2, 3))) == 1.5
    assert length_ratio(make_rollout(tool(1)), make_rollout(policy(1))) == 1.0


def test_pairs_depend_on_the_seed_and_on_nothing_else() -> None:
    rollouts = [_rollout("a", member) for member in range(12)]
    verdicts = [RIGHT] * 6 + [WRONG] * 6
    first, again, other = (_members(_pairs(rollouts, verdicts, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_pair_has_one_prompt() -> None:
    with pytest.raises(DataError, match="one prompt"):
        Pair(chosen=_rollout("a", 0), rejected=_rollout("b", 0))


# -- the loss --------------------------------------------------------------------------------------------------------


def test_the_loss_of_one_pair_by_hand() -> None:
    # chosen: gaps 0.5 and 0.1, logprobs -1 and -3; rejected: one token, gap -0.4; the last column is masked
    logprobs_BT = torch.tensor([[-1.0, -3.0, 9.0], [-2.0, 9.0, 9.0]], dtype=torch.float64, requires_grad=True)
    reference_BT = torch.tensor([[-1.5, -3.1, math.nan], [-1.6, math.nan, 7.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False], [True, False, False]])
    loss = dpo_loss(logprobs_BT, reference_BT, mask_BT, beta=0.5, nll_weight=0.2, num_pairs=1)
    # -log sigmoid(0.5 (0.6 + 0.4)) = log(1 + e^-0.5) = 0.4740770; NLL (1 + 3) / 2 = 2
    assert float(loss.detach()) == pytest.approx(0.4740770 + 0.4, abs=1e-6)
    loss.backward()
    # slope of the first term: -0.5 sigmoid(-0.5) = -0.1887703 a token of the chosen; the NLL adds -0.2 / 2
    assert logprobs_BT.grad is not None
    expected_BT = torch.tensor([[-0.2887703, -0.2887703, 0.0], [0.1887703, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(logprobs_BT.grad, expected_BT, atol=1e-6, rtol=0)


def test_the_denominator_is_that_of_the_whole_step() -> None:
    logprobs_BT = torch.tensor([[-1.0], [-2.0]])
    mask_BT = torch.ones(2, 1, dtype=torch.bool)
    one, four = (
        dpo_loss(logprobs_BT, logprobs_BT - 1, mask_BT, beta=0.1, nll_weight=1.0, num_pairs=count) for count in (1, 4)
    )
    assert float(four) == pytest.approx(float(one) / 4)


# -- a round ---------------------------------------------------------------------------------------------------------


def _tiny_pairs(count: int = 6) -> list[Pair]:
    pairs: list[Pair] = []
    for index in range(count):
        prompt = (5, 6, 7 + index)
        chosen = make_rollout(policy(20 + index, 40), tool(30, 31), policy(50), prompt=prompt)
        rejected = make_rollout(policy(60 + index, 70, 80), prompt=prompt)
        pairs.append(Pair(chosen=chosen, rejected=rejected))
    return pairs


def _config(**fields: Any) -> PreferenceConfig:
    usual: dict[str, Any] = {"kind": "verifier", "batch_size": 4, "learning_rate": 5e-3, "epochs": 2}
    return PreferenceConfig(**(usual | fields))


def _round(tiny: Policy, pairs: list[Pair], tmp_path: Path, **fields: Any) -> Any:
    return prefer(tiny.model, tiny_tokenizer(), pairs, _config(**fields), seed=3, output_dir=tmp_path / "out")


def _sum(tiny: Policy, rollout: Rollout) -> float:
    """Log-probability of what the policy wrote, by the model's own forward pass."""
    prompt = rollout.prompt.token_ids
    logprobs_T = plain_logprobs(tiny.model, (*prompt, *rollout.token_ids), len(prompt))
    return float(logprobs_T[torch.tensor(rollout.loss_mask)].sum())


def test_a_round_prefers_the_chosen_to_the_rejected(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path)
    pairs = _tiny_pairs()
    before = [_sum(tiny, pair.chosen) - _sum(tiny, pair.rejected) for pair in pairs]
    metrics = _round(tiny, pairs, tmp_path)
    after = [_sum(tiny, pair.chosen) - _sum(tiny, pair.rejected) for pair in pairs]
    assert all(new > old for new, old in zip(after, before, strict=True))
    assert metrics["num_steps"] == 2 * 2
    assert metrics["loss_curve"][-1] < metrics["loss_curve"][0]
    assert metrics["num_learnt_tokens"] == 2 * 6 * (3 + 3)
    assert metrics["num_tokens"] == 2 * 6 * (8 + 6)


def test_the_first_loss_is_that_of_equal_policies(tmp_path: Path) -> None:
    """Policy and reference are the same before the first step: log 2, and the mean NLL of the chosen of that batch."""
    tiny = make_policy(tmp_path)
    pairs = _tiny_pairs(4)
    nll = [-_sum(tiny, pair.chosen) / pair.chosen.num_policy_tokens for pair in pairs]
    metrics = _round(tiny, pairs, tmp_path, nll_weight=0.5, epochs=1)
    assert metrics["loss_curve"] == [pytest.approx(math.log(2) + 0.5 * sum(nll) / 4, abs=1e-4)]


@pytest.mark.parametrize("count", [4, 6])
def test_forward_passes_of_a_pair_give_the_adapter_of_one(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six pairs in steps of four: the last step of an epoch has two, and each pair of it weighs a half."""
    whole, parts = make_policy(tmp_path / "whole"), make_policy(tmp_path / "parts")
    _round(whole, _tiny_pairs(count), tmp_path)
    monkeypatch.setattr(preference, "MICROBATCH_TOKENS", 20)
    assert microbatch_size(_tiny_pairs(count), 4) == 1
    _round(parts, _tiny_pairs(count), tmp_path)
    expected = trainable(whole.model)
    for name, weight in trainable(parts.model).items():
        torch.testing.assert_close(weight, expected[name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("tokens", [20, 2048], ids=["a pair a pass", "all at once"])
def test_the_loss_of_a_step_is_a_mean_over_its_own_pairs(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policy and reference are equal, so every pair costs log 2: also in the second step, which has two of the six."""
    monkeypatch.setattr(preference, "MICROBATCH_TOKENS", tokens)
    metrics = _round(make_policy(tmp_path), _tiny_pairs(6), tmp_path, nll_weight=0.0, learning_rate=1e-12, epochs=1)
    assert metrics["loss_curve"] == pytest.approx([math.log(2)] * 2, abs=1e-4)


def test_what_a_tool_wrote_is_not_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor] = []
    plain = preference.dpo_loss

    def spy(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, **settings: Any) -> Tensor:
        masks.append(mask_BT)
        return plain(logprobs_BT, reference_BT, mask_BT, **settings)

    monkeypatch.setattr(preference, "dpo_loss", spy)
    _round(make_policy(tmp_path), _tiny_pairs(1), tmp_path, epochs=1)
    # prompt of three: two of its tokens are predicted and not learnt; two own, two of the tool, one own
    assert masks[0].tolist() == [[False] * 2 + [True, True, False, False, True], [False] * 2 + [True] * 3 + [False] * 2]


def test_a_round_leaves_the_model_as_it_was_apart_from_its_adapter(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path)
    frozen = {
        name: weight.detach().clone() for name, weight in tiny.model.named_parameters() if not weight.requires_grad
    }
    names = [name for name, _ in tiny.model.named_parameters()]
    wanted = {name for name, weight in tiny.model.named_parameters() if weight.requires_grad}
    _round(tiny, _tiny_pairs(), tmp_path)
    assert [name for name, _ in tiny.model.named_parameters()] == names
    assert {name for name, weight in tiny.model.named_parameters() if weight.requires_grad} == wanted
    after = dict(tiny.model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in frozen.items())
    assert list(tiny.model.peft_config) == ["default"]
    _round(tiny, _tiny_pairs(), tmp_path)  # a second round begins like the first


def test_the_same_seed_gives_the_same_adapter(tmp_path: Path) -> None:
    found: list[dict[str, Tensor]] = []
    for name in ("first", "again"):
        tiny = make_policy(tmp_path / name)
        _round(tiny, _tiny_pairs(), tmp_path)
        found.append(trainable(tiny.model))
    assert all(torch.equal(weight, found[0][name]) for name, weight in found[1].items())


def test_a_round_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pairs"):
        _round(make_policy(tmp_path), [], tmp_path)
