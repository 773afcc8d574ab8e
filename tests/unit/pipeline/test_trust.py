"""An engine that has the adapter passes; one that has another, or none, is refused; a base that changed is found."""

from pathlib import Path
from typing import Any

import pytest
import torch

from edge_rl.config import LearningConfig
from edge_rl.errors import EngineError, ModelError
from edge_rl.learning.learner import Learner
from edge_rl.pipeline.trust import NUM_ROLLOUTS, check_engine, fresh_rollouts
from edge_rl.types import ScoredGroup, generate_all
from edge_rl.weights.adapters import base_facts, check_frozen
from tests.builders import make_request, make_rollout, make_scored_group, policy
from tests.builders_models import randomise_adapter
from tests.builders_policies import Policy, make_policy, plain_logprobs

PROMPT = (5, 6, 7)


def _sampled(tiny: Policy, adapter: Path | None, *, version: int = 3) -> list[ScoredGroup]:
    """A group that the engine sampled with this adapter."""
    tiny.engine.load_adapter(adapter, policy_version=version)
    requests = [make_request(*PROMPT, key=str(index), seed=index, max_new_tokens=12) for index in range(2)]
    rollouts = [make_rollout(segment, prompt=PROMPT) for segment in generate_all(tiny.engine, requests)]
    return [make_scored_group([1.0, 0.0], rollouts)]


def _learner(tiny: Policy) -> Learner:
    return Learner(tiny.model, LearningConfig(), temperature=1.0, pad_token_id=2)


def _check(tiny: Policy, groups: list[ScoredGroup], **changed: Any) -> str:
    usual: dict[str, Any] = {"policy_version": 3, "dtype": torch.float32, "is_quantised": False}
    return check_engine(_learner(tiny), groups, **(usual | changed))


def test_an_engine_with_the_adapter_passes_and_the_base_would_not(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    text = _check(tiny, _sampled(tiny, tiny.save()))
    assert "the base without adapter would" in text


def test_an_adapter_that_changes_nothing_yet_is_said(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.0)
    assert "too little yet" in _check(tiny, _sampled(tiny, tiny.save()))


def test_an_engine_without_the_adapter_is_refused(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    with pytest.raises(EngineError, match="samples from the base without the adapter"):
        _check(tiny, _sampled(tiny, None))


def test_an_engine_with_the_adapter_of_before_is_refused(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    old = tiny.save("old")
    groups = _sampled(tiny, old)
    randomise_adapter(tiny.model, std=0.1, seed=9)
    with pytest.raises(EngineError, match=r"differ by .* allowed are 0\.001"):
        _check(tiny, groups)


def test_a_coarser_dtype_explains_a_wider_gap(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    (group,) = _sampled(tiny, tiny.save())
    off = [
        make_rollout(
            policy(*rollout.token_ids, logprobs=[value - 0.03 for value in rollout.behaviour_logprobs], version=3),
            prompt=PROMPT,
        )
        for rollout in group.group.rollouts
    ]
    groups = [make_scored_group([1.0, 0.0], off)]
    for allowed in ({"dtype": torch.bfloat16}, {"is_quantised": True}):
        assert "engine and trainer differ by" in _check(tiny, groups, **allowed)
    for refused in ({"dtype": torch.float32}, {"dtype": torch.float16}):
        with pytest.raises(EngineError, match="not those of the policy that is trained"):
            _check(tiny, groups, **refused)


def test_only_tokens_of_this_policy_are_compared(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    groups = _sampled(tiny, tiny.save(), version=2)
    assert "no token of this policy" in _check(tiny, groups)
    # an old chunk of another policy in front changes nothing
    fresh = _sampled(tiny, tiny.save(), version=3)[0].group.rollouts[0]
    prompt = (*PROMPT, 10, 11)
    tiny.engine.load_adapter(tiny.save(), policy_version=3)
    (segment,) = generate_all(tiny.engine, [make_request(*prompt, max_new_tokens=6)])
    mixed = make_rollout(policy(10, 11, logprobs=[-9.0, -9.0], version=2), segment, prompt=PROMPT)
    own, base = _learner(tiny).engine_gaps([mixed], policy_version=3)
    assert own < 1e-4 < base
    assert fresh.policy_versions[0] == 3


def test_the_gap_is_a_mean_over_tokens(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path, std=0.1)
    rollout = make_rollout(policy(10, 11, logprobs=[-1.0, -2.0]), prompt=PROMPT)
    own, base = _learner(tiny).engine_gaps([rollout], policy_version=0)
    trainer = plain_logprobs(tiny.model, (*PROMPT, 10, 11), 3)
    with tiny.model.disable_adapter():
        bare = plain_logprobs(tiny.model, (*PROMPT, 10, 11), 3)
    engine = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    assert own == pytest.approx(float((trainer - engine).abs().mean()), abs=1e-5)
    assert base == pytest.approx(float((bare - engine).abs().mean()), abs=1e-5)
    with pytest.raises(ValueError, match="no token of policy version 7"):
        _learner(tiny).engine_gaps([rollout], policy_version=7)


def test_one_rollout_of_each_group_is_taken() -> None:
    groups = [
        make_scored_group(
            [1.0, 0.0], [make_rollout(policy(1, version=1)), make_rollout(policy(2, version=3), member=1)]
        )
        for _ in range(NUM_ROLLOUTS + 2)
    ]
    found = fresh_rollouts(groups, 3)
    assert [rollout.member for rollout in found] == [1] * NUM_ROLLOUTS
    assert fresh_rollouts(groups, 4) == []


def test_a_base_that_changed_in_one_weight_is_found(tmp_path: Path) -> None:
    tiny = make_policy(tmp_path)
    facts = base_facts(tiny.model)
    randomise_adapter(tiny.model, std=0.5, seed=4)
    check_frozen(tiny.model, facts)  # the adapter may change
    with torch.no_grad():
        next(weight for weight in tiny.model.parameters() if not weight.requires_grad).view(-1)[7] += 1e-3
    with pytest.raises(ModelError, match="frozen base changed"):
        check_frozen(tiny.model, facts)
