"""Continuous batching against the plainest generation there is: one sequence, no cache, one forward pass a token."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from edge_rl.errors import EngineError
from edge_rl.rollout.engines import hf
from edge_rl.rollout.engines.hf import HfEngine
from edge_rl.rollout.engines.sampling import sample, uniform
from edge_rl.rollout.engines.slot_cache import SlotCache
from edge_rl.types import GenerationRequest, Segment, generate_all
from tests.builders import make_request
from tests.builders_policies import Policy, make_policy

TOLERANCE = 5e-5  # float32: logits of 30 or more, summed in another order


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    made = make_policy(tmp_path_factory.mktemp("policy"), slots=8)
    made.engine.load_adapter(made.save(), policy_version=1)
    return made


@torch.no_grad()
def _plain(model: PeftModel, request: GenerationRequest) -> tuple[list[int], list[float]]:
    """What the request means, token by token."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    while len(token_ids) < request.max_new_tokens:
        sequence = [*request.token_ids, *token_ids]
        logits_BV = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[:, -1]
        draw_B = torch.tensor([uniform(request.seed, len(sequence))], dtype=torch.float64)
        token_B, logprob_B = sample(logits_BV, draw_B, torch.tensor([request.temperature]))
        token_ids.append(int(token_B))
        logprobs.append(float(logprob_B))
        if token_ids[-1] in request.stop_token_ids:
            break
        if token_ids[-1] in request.watch_token_ids and request.stop_when is not None and request.stop_when(token_ids):
            break
    return token_ids, logprobs


def _check(policy: Policy, requests: Sequence[GenerationRequest], segments: Sequence[Segment]) -> None:
    for request, segment in zip(requests, segments, strict=True):
        token_ids, logprobs = _plain(policy.model, request)
        assert list(segment.token_ids) == token_ids, request.key
        assert segment.behaviour_logprobs == pytest.approx(logprobs, abs=TOLERANCE)
        assert segment.policy_version == 1


def _requests(count: int, *, prompts: Sequence[Sequence[int]], **fields: Any) -> list[GenerationRequest]:
    return [
        make_request(*prompts[index % len(prompts)], key=str(index), seed=index, **fields) for index in range(count)
    ]


PROMPTS = ((5, 6, 7), (200, 11, 12, 13, 14, 150, 16), (9,), (30, 40, 50, 60, 70))


def test_more_requests_than_slots_equal_one_by_one(policy: Policy) -> None:
    # 19 requests, 8 slots, lengths from 1 to 13: slots are freed and filled at many places, and the end is compacted
    requests = [
        replace(request, max_new_tokens=1 + (index * 5) % 13)
        for index, request in enumerate(_requests(19, prompts=PROMPTS))
    ]
    _check(policy, requests, generate_all(policy.engine, requests))


def test_members_of_a_group_share_their_prompt_and_not_their_draws(policy: Policy) -> None:
    requests = _requests(8, prompts=PROMPTS[:1], max_new_tokens=6)
    segments = generate_all(policy.engine, requests)
    _check(policy, requests, segments)
    assert len({segment.token_ids for segment in segments}) > 1


def test_a_shared_prompt_is_read_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    original = HfEngine.next_logits

    def count(
        engine: HfEngine, cache: SlotCache, rows: Sequence[int], new: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        passes.append(sum(len(tokens) for tokens in new))
        return original(engine, cache, rows, new, starts)

    monkeypatch.setattr(HfEngine, "next_logits", count)
    generate_all(policy.engine, _requests(4, prompts=PROMPTS[:1], max_new_tokens=3))
    # 3 tokens of the prompt once, then 4 rows twice
    assert passes == [3, 4, 4]


PREFIX = (301, 302, 303, 304)


@pytest.mark.parametrize(
    "endings", [((5,), (6,)), ((5, 6), (5, 6, 7), (8,)), ((), (5,)), ((301, 302), (301,))], ids=str
)
def test_what_all_prompts_begin_with_is_read_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, endings: Sequence[Sequence[int]]
) -> None:
    """19 requests on 8 slots: rows are freed, decoded along while free, and filled again behind the kept beginning."""
    prompts = [(*PREFIX, *ending) for ending in endings]
    requests = [
        replace(request, max_new_tokens=1 + (index * 5) % 13)
        for index, request in enumerate(_requests(19, prompts=prompts))
    ]
    read: list[int] = []
    original = HfEngine.next_logits

    def count(
        engine: HfEngine, cache: SlotCache, rows: Sequence[int], new: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> torch.Tensor:
        read.extend(len(tokens) for tokens, start in zip(new, starts, strict=True) if start == 0)
        return original(engine, cache, rows, new, starts)

    monkeypatch.setattr(HfEngine, "next_logits", count)
    segments = generate_all(policy.engine, requests)
    assert read == [len(PREFIX) if () not in endings else len(PREFIX) - 1]
    _check(policy, requests, segments)


def test_a_small_prefill_budget_changes_nothing(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "PREFILL_TOKENS", 8)
    requests = _requests(9, prompts=PROMPTS, max_new_tokens=5)
    _check(policy, requests, generate_all(policy.engine, requests))


def test_stop_token_is_kept_and_ends_the_segment(policy: Policy) -> None:
    stop = frozenset(range(0, 320, 5))
    requests = _requests(9, prompts=PROMPTS, max_new_tokens=20, stop_token_ids=stop)
    segments = generate_all(policy.engine, requests)
    _check(policy, requests, segments)
    for segment in segments:
        assert not stop & set(segment.token_ids[:-1])
        assert segment.token_ids[-1] in stop or len(segment.token_ids) == 20
    assert any(segment.token_ids[-1] in stop and len(segment.token_ids) < 20 for segment in segments)


def test_stop_when_is_asked_after_watched_tokens_only(policy: Policy) -> None:
    watched = frozenset(range(0, 320, 2))
    asked: list[int] = []

    def stop_when(token_ids: Sequence[int]) -> bool:
        asked.append(token_ids[-1])
        return sum(token in watched for token in token_ids) == 3

    requests = _requests(6, prompts=PROMPTS, max_new_tokens=30, watch_token_ids=watched, stop_when=stop_when)
    segments = generate_all(policy.engine, requests)
    assert asked and set(asked) <= watched
    _check(policy, requests, segments)
    assert all(sum(token in watched for token in segment.token_ids) == 3 for segment in segments)


def test_temperatures_may_differ_between_neighbours(policy: Policy) -> None:
    requests = [
        replace(request, temperature=temperature)
        for request, temperature in zip(_requests(6, prompts=PROMPTS[:2]), (0.0, 1.0, 0.5, 0.0, 2.0, 1.0), strict=True)
    ]
    segments = generate_all(policy.engine, requests)
    _check(policy, requests, segments)
    assert segments[0].token_ids != segments[4].token_ids  # the same prompt, greedy and hot


def test_greedy_ignores_the_seed(policy: Policy) -> None:
    requests = _requests(3, prompts=PROMPTS[:1], temperature=0.0)
    assert len({segment.token_ids for segment in generate_all(policy.engine, requests)}) == 1


def _converse(engine: HfEngine, requests: Sequence[GenerationRequest]) -> dict[str, list[tuple[int, ...]]]:
    """Give each sequence two tool results of different lengths; return what it wrote in each turn."""
    turns: dict[str, list[tuple[int, ...]]] = {request.key: [] for request in requests}

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        written = turns[request.key]
        written.append(segment.token_ids)
        if len(written) == 3:
            return None
        result = tuple(range(100, 101 + 7 * len(written) + int(request.key) % 3))
        return replace(request, token_ids=(*request.token_ids, *segment.token_ids, *result))

    engine.generate(requests, follow_up)
    return turns


@pytest.mark.parametrize("count", [1, 11])
def test_follow_ups_continue_their_own_sequence(policy: Policy, count: int) -> None:
    requests = [
        replace(request, max_new_tokens=2 + index % 5)
        for index, request in enumerate(_requests(count, prompts=PROMPTS))
    ]
    together = _converse(policy.engine, requests)
    for request in requests:
        token_ids = request.token_ids
        for turn, written in enumerate(together[request.key], start=1):
            expected, _ = _plain(policy.model, replace(request, token_ids=token_ids))
            assert list(written) == expected, (request.key, turn)
            result = tuple(range(100, 101 + 7 * turn + int(request.key) % 3))
            token_ids = (*token_ids, *written, *result)


def test_a_follow_up_may_be_read_whole_again(policy: Policy) -> None:
    """A result of no token leaves only the last token to read."""
    turns: list[tuple[int, ...]] = []

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        turns.append(segment.token_ids)
        return None if len(turns) == 2 else replace(request, token_ids=(*request.token_ids, *segment.token_ids))

    request = make_request(5, 6, 7, max_new_tokens=4, seed=3)
    policy.engine.generate([request], follow_up)
    expected, _ = _plain(policy.model, replace(request, max_new_tokens=8))
    assert [*turns[0], *turns[1]] == expected


def test_a_follow_up_that_rewrites_the_sequence_is_refused(policy: Policy) -> None:
    calls: list[str] = []

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        calls.append(request.key)
        return replace(request, token_ids=(1, 2, 3, 4, 5, 6, 7, 8)) if len(calls) == 1 else None

    with pytest.raises(EngineError, match="request r: a follow-up must extend"):
        policy.engine.generate([make_request(5, 6, 7, max_new_tokens=2)], follow_up)


@pytest.mark.parametrize("length", [63, 64, 65, 128])
def test_prompts_and_sequences_that_fill_the_cache(policy: Policy, length: int) -> None:
    # The capacity is a multiple of 64: a shared prompt that fills it exactly is copied, one that ends beside it grows.
    prompt = tuple(3 + index % 300 for index in range(length))
    requests = [make_request(*prompt, key=str(seed), seed=seed, max_new_tokens=2 + seed) for seed in range(3)]
    _check(policy, requests, generate_all(policy.engine, requests))


def _lengths() -> Iterator[list[int]]:
    # compaction needs at least four idle slots
    yield [1, 9, 1, 9, 1, 1, 1, 9]
    yield [9, 1, 1, 1, 1, 1, 1, 1]
    yield [1, 1, 1, 1, 2, 3, 9, 12]
    yield [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("lengths", list(_lengths()))
def test_compaction_moves_sequences_without_harm(policy: Policy, lengths: list[int]) -> None:
    requests = [
        replace(request, max_new_tokens=length)
        for request, length in zip(_requests(8, prompts=PROMPTS), lengths, strict=True)
    ]
    _check(policy, requests, generate_all(policy.engine, requests))


def test_compaction_at_the_capacity_of_the_cache(policy: Policy) -> None:
    # the survivor in the last slot is moved when its sequence is exactly 64 tokens long
    short = [make_request(*range(3, 63), key=str(index), seed=index, max_new_tokens=5) for index in range(7)]
    long = make_request(*range(100, 159), key="long", seed=9, max_new_tokens=12)
    requests = [*short, long]
    _check(policy, requests, generate_all(policy.engine, requests))


def test_gaps_are_closed_so_that_later_passes_are_narrower(policy: Policy) -> None:
    # From 8 rows to one in the last slot: without compaction every later pass computes 8 rows.
    requests = [
        replace(request, max_new_tokens=length)
        for request, length in zip(_requests(8, prompts=PROMPTS), (*(2,) * 7, 42), strict=True)
    ]
    rows, passes = policy.engine.decode_slot_steps, policy.engine.decode_passes
    generate_all(policy.engine, requests)
    # 41 decode passes: the first of 8 rows, then the survivor alone
    assert policy.engine.decode_passes - passes == 41
    assert policy.engine.decode_slot_steps - rows == 8 + 40


def test_decoded_tokens_are_counted(policy: Policy) -> None:
    before = policy.engine.decoded_tokens
    segments = generate_all(policy.engine, _requests(5, prompts=PROMPTS, max_new_tokens=4))
    assert policy.engine.decoded_tokens - before == sum(len(segment.token_ids) for segment in segments) == 20


def test_a_request_does_not_depend_on_what_was_generated_before(policy: Policy) -> None:
    request = make_request(8, 9, seed=5)
    alone = generate_all(policy.engine, [request])[0]
    generate_all(policy.engine, _requests(7, prompts=PROMPTS))
    assert generate_all(policy.engine, [request])[0] == alone


@pytest.mark.parametrize(
    "request_", [GenerationRequest(key="r", token_ids=(), max_new_tokens=3, stop_token_ids=frozenset()), None]
)
def test_a_request_without_anything_to_do_is_refused(policy: Policy, request_: GenerationRequest | None) -> None:
    with pytest.raises(EngineError, match="request r: needs at least one token to continue and one to write"):
        generate_all(policy.engine, [request_ or make_request(max_new_tokens=0)])


def test_no_requests_are_no_work(policy: Policy) -> None:
    assert generate_all(policy.engine, []) == []


def test_load_adapter_none_samples_from_the_base(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    policy.engine.load_adapter(None, policy_version=2)
    request = make_request(5, 6, 7, seed=1)
    base = generate_all(policy.engine, [request])[0]
    with policy.model.disable_adapter():
        token_ids, logprobs = _plain(policy.model, request)
    assert list(base.token_ids) == token_ids
    assert base.behaviour_logprobs == pytest.approx(logprobs, abs=TOLERANCE)
    assert base.policy_version == 2
    policy.engine.load_adapter(policy.save(), policy_version=3)
    tuned = generate_all(policy.engine, [request])[0]
    assert tuned.behaviour_logprobs != pytest.approx(base.behaviour_logprobs, abs=1e-3)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_equal_their_plain_forward_pass(tmp_path: Path, family: str) -> None:
    policy = make_policy(tmp_path, family=family)
    policy.engine.load_adapter(policy.save(), policy_version=1)
    requests = _requests(5, prompts=PROMPTS, max_new_tokens=5)
    _check(policy, requests, generate_all(policy.engine, requests))
