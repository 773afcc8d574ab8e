"""Each loss, on one or two tokens, by hand. tests/invariants/test_trl_parity.py compares whole batches with TRL."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edge_rl.errors import ConfigError
from edge_rl.learning.losses import LOSSES, LossInputs, LossSettings, clipped_terms, get_loss, kl_terms, log_ratio

TOKEN_LOSSES = ("dapo", "grpo", "dr_grpo")


def _inputs(
    log_ratios: Sequence[Sequence[float]],
    advantages: Sequence[float],
    *,
    mask: Sequence[Sequence[bool]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
    old: float = -1.0,
    num_loss_tokens: int | None = None,
    num_rollouts: int | None = None,
) -> tuple[LossInputs, Tensor]:
    """The policy has `old` + log ratio, the old policy `old`; `reference` is relative to the policy."""
    gaps_BT = torch.tensor(log_ratios, dtype=torch.float64)
    logprobs_BT = (gaps_BT + old).requires_grad_()
    mask_BT = torch.ones_like(gaps_BT, dtype=torch.bool) if mask is None else torch.tensor(mask)
    inputs = LossInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=torch.full_like(gaps_BT, old),
        advantages_BT=torch.tensor(advantages, dtype=torch.float64).unsqueeze(1).expand_as(gaps_BT),
        loss_mask_BT=mask_BT,
        reference_logprobs_BT=None
        if reference is None
        else logprobs_BT.detach() + torch.tensor(reference, dtype=torch.float64),
        num_loss_tokens=num_loss_tokens or int(mask_BT.sum()),
        num_rollouts=num_rollouts or len(log_ratios),
    )
    return inputs, logprobs_BT


def _run(name: str, given: tuple[LossInputs, Tensor], **settings: float) -> tuple[float, Tensor, dict[str, float]]:
    inputs, logprobs_BT = given
    loss, metrics = get_loss(name)(inputs, LossSettings(**settings))  # pyright: ignore[reportArgumentType]
    loss.backward()
    assert logprobs_BT.grad is not None
    return float(loss.detach()), logprobs_BT.grad, {key: float(value) for key, value in metrics.items()}


# -- the clip --------------------------------------------------------------------------------------------------------

# ratio, advantage -> objective, its slope in log ratio. Clip 0.2 / 0.28, dual clip 10.
CLIP_CASES = [
    (1.0, 1.0, 1.0, 1.0),
    (1.0, -1.0, -1.0, -1.0),
    (1.27, 2.0, 2.54, 2.54),  # inside
    (1.5, 2.0, 2.56, 0.0),  # min(3.0, 1.28 * 2): above the clip, nothing more to gain
    (0.5, 2.0, 1.0, 1.0),  # min(1.0, 0.8 * 2): pulled back up
    (0.81, -2.0, -1.62, -1.62),  # inside
    (0.5, -2.0, -1.6, 0.0),  # min(-1.0, 0.8 * -2): below the clip, nothing more to gain
    (1.5, -2.0, -3.0, -3.0),  # min(-3.0, 1.28 * -2): pulled back down
    (9.9, -2.0, -19.8, -19.8),
    (12.0, -2.0, -20.0, 0.0),  # not below 10 * -2: dual clip
    (12.0, 2.0, 2.56, 0.0),  # no dual clip for a positive advantage
]


@pytest.mark.parametrize("name", TOKEN_LOSSES)
@pytest.mark.parametrize(("ratio", "advantage", "objective", "slope"), CLIP_CASES)
def test_clip_of_one_token(name: str, ratio: float, advantage: float, objective: float, slope: float) -> None:
    loss, gradient_BT, _ = _run(name, _inputs([[math.log(ratio)]], [advantage]))
    assert loss == pytest.approx(-objective, abs=1e-9)
    assert gradient_BT.item() == pytest.approx(-slope, abs=1e-9)


def test_clipped_terms_with_other_bounds() -> None:
    # clip 0.1 / 0.3, dual 3: ratio 0.85 at A = -1 -> -0.9; ratio 1.35 at A = +1 -> 1.3; ratio 4 at A = -1 -> -3
    settings = LossSettings(clip_low=0.1, clip_high=0.3, dual_clip=3.0)
    found = clipped_terms(torch.tensor([0.85, 1.35, 4.0]), torch.tensor([-1.0, 1.0, -1.0]), settings)
    torch.testing.assert_close(found, torch.tensor([-0.9, 1.3, -3.0]), atol=1e-6, rtol=0)


def test_a_zero_advantage_gives_no_objective_and_no_gradient() -> None:
    loss, gradient_BT, _ = _run("dapo", _inputs([[math.log(3.0), 0.0]], [0.0]))
    assert loss == 0.0
    assert gradient_BT.abs().max() == 0.0


# -- the means -------------------------------------------------------------------------------------------------------

# two rollouts of 3 and 1 policy tokens, ratio 1, advantages +1 and -2; rollout 0 has a tool token of ratio e^5
MASK = [[True, False, True, True], [True, False, False, False]]
RATIOS = [[0.0, 5.0, 0.0, 0.0], [0.0, 5.0, 5.0, 5.0]]


@pytest.mark.parametrize(
    ("name", "loss", "slopes"),
    [
        # dapo: -(3 * 1 - 2) / 4, each token weighs 1/4
        ("dapo", -0.25, (-1 / 4, 2 / 4)),
        # grpo: -(3/3 * 1 - 2) / 2; tokens of the long rollout weigh 1/6, of the short one 1/2
        ("grpo", 0.5, (-1 / 6, 2 / 2)),
        # dr_grpo with L_max 10: -(3 - 2) / (2 * 10)
        ("dr_grpo", -0.05, (-1 / 20, 2 / 20)),
        # gspo: as grpo where the ratio is 1
        ("gspo", 0.5, (-1 / 6, 2 / 2)),
        # sapo: the gate at ratio 1 is (4 / t) / 2 = 2 / t: 2 for A > 0, 2 / 1.05 else; its slope is 1.
        ("sapo", -(2 - 4 / 1.05) / 2, (-1 / 6, 2 / 2)),
        # cispo: the same gradient as dapo; its value is that of REINFORCE with logprobs of -1: -(3 * -1 + 2) / 4
        ("cispo", 0.25, (-1 / 4, 2 / 4)),
    ],
)
def test_means_over_tokens_and_rollouts(name: str, loss: float, slopes: tuple[float, float]) -> None:
    found, gradient_BT, metrics = _run(name, _inputs(RATIOS, [1.0, -2.0], mask=MASK), max_tokens=10)
    assert found == pytest.approx(loss, abs=1e-12)
    expected_BT = torch.tensor(MASK) * torch.tensor(slopes, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(gradient_BT, expected_BT, atol=1e-12, rtol=0)
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_denominators_are_those_of_the_whole_step(name: str) -> None:
    """A microbatch of a step with twice the tokens and rollouts weighs half."""
    alone, alone_BT, _ = _run(name, _inputs(RATIOS, [1.0, -2.0], mask=MASK), max_tokens=10)
    part, part_BT, metrics = _run(
        name, _inputs(RATIOS, [1.0, -2.0], mask=MASK, num_loss_tokens=8, num_rollouts=4), max_tokens=10
    )
    assert part == pytest.approx(alone / 2, abs=1e-12)
    torch.testing.assert_close(part_BT, alone_BT / 2, atol=1e-12, rtol=0)
    assert metrics["ratio"] == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_masked_tokens_are_never_read(name: str) -> None:
    """Whatever stands there, NaN included, loss, gradient and metrics are the same."""
    plain = _run(name, _inputs(RATIOS, [1.0, -2.0], mask=MASK, reference=[[0.1] * 4] * 2), kl_coefficient=0.3)
    inputs, logprobs_BT = _inputs(RATIOS, [1.0, -2.0], mask=MASK, reference=[[0.1] * 4] * 2)
    hidden_BT = ~torch.tensor(MASK)
    assert inputs.reference_logprobs_BT is not None
    inputs.old_logprobs_BT[hidden_BT] = -math.inf
    inputs.reference_logprobs_BT[hidden_BT] = math.nan
    with torch.no_grad():
        logprobs_BT[hidden_BT] = 0.0
    odd = _run(name, (inputs, logprobs_BT), kl_coefficient=0.3)
    assert odd[0] == pytest.approx(plain[0], abs=1e-12)
    torch.testing.assert_close(odd[1], plain[1], atol=1e-12, rtol=0)
    assert odd[2] == pytest.approx(plain[2], abs=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_rollout_without_policy_tokens_is_no_division_by_zero(name: str) -> None:
    mask = [[True, True], [False, False]]
    loss, gradient_BT, _ = _run(name, _inputs([[0.0, 0.0]] * 2, [1.0, 1.0], mask=mask))
    assert math.isfinite(loss)
    assert bool(gradient_BT.isfinite().all())
    assert gradient_BT[1].abs().max() == 0.0


# -- gspo ------------------------------------------------------------------------------------------------------------


def test_gspo_uses_the_geometric_mean_of_the_token_ratios() -> None:
    # log ratios 0.3, (tool), 0.0: ratio e^0.15 = 1.1618342, inside the clip; A = 2 -> loss -2.3236685.
    # d loss / d logprob of either policy token = -2 * 1.1618342 / 2
    given = _inputs([[0.3, 9.0, 0.0]], [2.0], mask=[[True, False, True]])
    loss, gradient_BT, metrics = _run("gspo", given)
    assert loss == pytest.approx(-2.3236685, abs=1e-6)
    assert gradient_BT[0].tolist() == pytest.approx([-1.1618342, 0.0, -1.1618342], abs=1e-6)
    assert metrics["ratio"] == pytest.approx(1.1618342, abs=1e-6)


def test_gspo_clips_whole_rollouts() -> None:
    # ratio e^0.4 = 1.49 above 1.28 at A = +1: -1.28, no gradient for any of its tokens, the one at ratio 1 included
    loss, gradient_BT, metrics = _run("gspo", _inputs([[0.8, 0.0]], [1.0]))
    assert loss == pytest.approx(-1.28, abs=1e-12)
    assert gradient_BT.abs().max() == 0.0
    assert metrics["clip_high"] == 1.0


# -- cispo -----------------------------------------------------------------------------------------------------------


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    # ratios 2.0 and 0.5, A = 3, logprobs -1 + ln 2 and -1 - ln 2; weights min(2, 1.28) = 1.28 and 0.5
    # loss = -(1.28 * 3 * (ln 2 - 1) + 0.5 * 3 * (-ln 2 - 1)) / 2; gradient -weight * A / 2
    log2 = math.log(2.0)
    loss, gradient_BT, metrics = _run("cispo", _inputs([[log2, -log2]], [3.0]))
    assert loss == pytest.approx(-(3.84 * (log2 - 1) + 1.5 * (-log2 - 1)) / 2, abs=1e-12)
    assert gradient_BT[0].tolist() == pytest.approx([-1.92, -0.75], abs=1e-12)
    assert metrics["clip_high"] == pytest.approx(0.5, abs=1e-12)


def test_cispo_has_no_lower_bound_and_the_same_cap_for_negative_advantages() -> None:
    loss, gradient_BT, _ = _run("cispo", _inputs([[math.log(0.1), math.log(5.0)]], [-1.0]))
    assert gradient_BT[0].tolist() == pytest.approx([0.05, 0.64], abs=1e-12)
    assert loss == pytest.approx((0.1 * (math.log(0.1) - 1) + 1.28 * (math.log(5.0) - 1)) / 2, abs=1e-12)


# -- sapo ------------------------------------------------------------------------------------------------------------


def test_sapo_passes_the_ratio_through_a_gate() -> None:
    # t = 2, r = 1.5: 4/2 sigmoid(2 * 0.5) = 2 * 0.7310586 = 1.4621172; A = 3 -> loss -4.3863515
    # slope in r: 4 s (1 - s) = 4 * 0.1966119 = 0.7864477; in log r times 1.5, times A: 3.5390147
    loss, gradient_BT, _ = _run("sapo", _inputs([[math.log(1.5)]], [3.0]), positive_temperature=2.0)
    assert loss == pytest.approx(-4.3863515, abs=1e-6)
    assert gradient_BT.item() == pytest.approx(-3.5390147, abs=1e-6)


def test_sapo_has_a_temperature_of_its_own_for_what_was_wrong() -> None:
    # t = 3, r = 0.5: 4/3 sigmoid(-1.5) = 4/3 * 0.1824255 = 0.2432340; A = -2 -> loss 0.4864681
    loss, _, _ = _run("sapo", _inputs([[math.log(0.5)]], [-2.0]), positive_temperature=9.0, negative_temperature=3.0)
    assert loss == pytest.approx(0.4864681, abs=1e-6)


def test_sapo_cuts_no_token_off() -> None:
    # twice as far as the clip of the others allows, the slope is smaller and not 0
    _, gradient_BT, _ = _run("sapo", _inputs([[math.log(1.6), math.log(0.4)]], [1.0]))
    assert bool((gradient_BT.abs() > 0.1).all())
    assert bool((gradient_BT.abs() < 0.8).all())


# -- the correction for the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_correction_weighs_the_objective_and_not_the_kl_term(name: str) -> None:
    def run(weights: Sequence[float] | None) -> tuple[float, Tensor]:
        inputs, logprobs_BT = _inputs([[0.1, -0.1]], [1.5], reference=[[0.5, 0.5]])
        weight_BT = None if weights is None else torch.tensor([weights], dtype=torch.float64)
        loss, gradient_BT, _ = _run(name, (replace(inputs, correction_BT=weight_BT), logprobs_BT), kl_coefficient=0.2)
        return loss, gradient_BT

    assert run([1.0, 1.0])[0] == run(None)[0]
    without, doubled, nothing = (run([weight] * 2) for weight in (1.0, 2.0, 0.0))
    # the KL term stays, so the objective's share is linear in the weight
    assert doubled[0] - nothing[0] == pytest.approx(2 * (without[0] - nothing[0]), abs=1e-12)
    torch.testing.assert_close(doubled[1] - nothing[1], 2 * (without[1] - nothing[1]), atol=1e-12, rtol=0)
    # 0.2 * k3(0.5): a mean over the two tokens, a sum with an L_max of 1
    assert nothing[0] == pytest.approx(0.2 * 0.1487213 * (2 if name == "dr_grpo" else 1), abs=1e-6)


# -- KL --------------------------------------------------------------------------------------------------------------


def test_kl_terms_are_k3() -> None:
    # gap d = log reference - log policy: e^d - d - 1. d = 0.5 -> 0.1487213, d = -0.5 -> 0.1065307, d = 0 -> 0
    inputs, _ = _inputs([[0.0, 0.0, 0.0]], [0.0], reference=[[0.5, -0.5, 0.0]])
    assert kl_terms(inputs)[0].tolist() == pytest.approx([0.1487213, 0.1065307, 0.0], abs=1e-7)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_kl_is_added_with_its_coefficient_and_its_gradient(name: str) -> None:
    # one token, A = 0, gap 0.5, coefficient 0.2: loss 0.2 * 0.1487213; slope 0.2 * (1 - e^0.5) = 0.2 * -0.6487213
    given = _inputs([[0.0]], [0.0], reference=[[0.5]])
    loss, gradient_BT, metrics = _run(name, given, kl_coefficient=0.2)
    assert loss == pytest.approx(0.0297443, abs=1e-7)
    assert gradient_BT.item() == pytest.approx(-0.1297443, abs=1e-7)
    assert metrics["kl"] == pytest.approx(0.1487213, abs=1e-7)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_without_a_coefficient_no_reference_is_needed(name: str) -> None:
    _, _, metrics = _run(name, _inputs([[0.0]], [1.0]))
    assert "kl" not in metrics


# -- log ratio -------------------------------------------------------------------------------------------------------


def test_log_ratio_is_clamped_to_20_and_0_where_masked() -> None:
    inputs, _ = _inputs([[25.0, -25.0, 19.0, 3.0]], [1.0], mask=[[True, True, True, False]])
    assert log_ratio(inputs)[0].tolist() == [20.0, -20.0, 19.0, 0.0]


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("gap", [2000.0, -2000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_absurd_ratio_leaves_loss_and_gradient_finite(name: str, gap: float, advantage: float) -> None:
    given = _inputs([[gap]], [advantage], reference=[[gap]])
    loss, gradient_BT, _ = _run(name, given, kl_coefficient=0.1)
    assert math.isfinite(loss)
    assert bool(gradient_BT.isfinite().all())


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_clip_shares_count_tokens_that_lose_their_gradient() -> None:
    # ratios 2, 1.1, 0.5 at A = +1 and the same at A = -1: one of six is clipped high, one low
    ratios = [math.log(ratio) for ratio in (2.0, 1.1, 0.5)]
    _, gradient_BT, metrics = _run("dapo", _inputs([ratios, ratios], [1.0, -1.0]))
    assert metrics["clip_high"] == pytest.approx(1 / 6, abs=1e-7)
    assert metrics["clip_low"] == pytest.approx(1 / 6, abs=1e-7)
    assert int((gradient_BT == 0).sum()) == 2
    assert metrics["ratio"] == pytest.approx((2.0 + 1.1 + 0.5) / 3, abs=1e-12)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"learning\.loss 'ppo' does not exist; known: dapo, grpo, dr_grpo, gspo, cispo, sapo"
    ):
        get_loss("ppo")
