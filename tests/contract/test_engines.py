"""What every engine promises, one test body for all of them: the scripted one, hf on a tiny model, llama.cpp on its GGUF."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edge_rl.rollout.engines.llama_cpp import LlamaCppEngine
from edge_rl.rollout.engines.sampling import uniform
from edge_rl.rollout.engines.scripted import ScriptedEngine
from edge_rl.types import Author, Engine, FollowUp, GenerationRequest, Segment, generate_all
from edge_rl.weights.gguf import write_gguf
from edge_rl.weights.llama_cpp import serve
from tests.builders import make_request
from tests.builders_models import save_tiny_model, tiny_tokenizer
from tests.builders_policies import make_policy

PROMPTS = ((40, 41, 42), (50, 51, 52, 53, 54, 55), (60,))
VOCABULARY = 320


def _scripted() -> Engine:
    """Every token is equally likely, drawn as the other engines draw."""

    def reply(request: GenerationRequest) -> Sequence[int]:
        start = len(request.token_ids)
        return [int(uniform(request.seed, start + place) * VOCABULARY) for place in range(request.max_new_tokens)]

    return ScriptedEngine(reply)


@pytest.fixture(
    scope="module",
    params=["scripted", "hf", pytest.param("llama_cpp", marks=[pytest.mark.llama_cpp, pytest.mark.slow])],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    if request.param == "scripted":
        yield _scripted()
    elif request.param == "hf":
        yield make_policy(folder, slots=4).engine
    else:
        pytest.importorskip("xllamacpp", reason="xllamacpp is not installed; run: pip install 'edge_rl[export]'")
        file = folder / "tiny.gguf"
        write_gguf(save_tiny_model(folder / "model"), file, "f16", provenance={})
        with serve(file, slots=4, context=256, threads=1) as server:
            yield LlamaCppEngine(server)


def _requests(count: int, **fields: Any) -> list[GenerationRequest]:
    return [make_request(*PROMPTS[index % 3], key=str(index), seed=100 + index, **fields) for index in range(count)]


def test_each_request_gets_one_policy_segment_with_a_logprob_per_token(engine: Engine) -> None:
    segments = generate_all(engine, _requests(6))
    assert len(segments) == 6
    for segment in segments:
        assert segment.author is Author.POLICY
        assert len(segment.token_ids) == len(segment.behaviour_logprobs) == 8
        assert all(-50.0 < logprob <= 0.0 for logprob in segment.behaviour_logprobs)
        assert all(0 <= token < VOCABULARY for token in segment.token_ids)


def test_no_request_gets_more_tokens_than_it_asked_for(engine: Engine) -> None:
    requests = [replace(request, max_new_tokens=1 + index) for index, request in enumerate(_requests(9))]
    segments = generate_all(engine, requests)
    assert [len(segment.token_ids) for segment in segments] == list(range(1, 10))


def test_a_stop_token_ends_the_segment_and_is_kept(engine: Engine) -> None:
    stop = frozenset(range(0, VOCABULARY, 4))
    segments = generate_all(engine, _requests(8, stop_token_ids=stop, max_new_tokens=12))
    for segment in segments:
        assert not stop & set(segment.token_ids[:-1])
        assert segment.token_ids[-1] in stop or len(segment.token_ids) == 12
    assert sum(segment.token_ids[-1] in stop for segment in segments) >= 4


def _letters() -> frozenset[int]:
    """Tokens with a common letter in them."""
    vocabulary = tiny_tokenizer().get_vocab()
    return frozenset(
        token_id for token, token_id in vocabulary.items() if set("aeinoprt") & set(token) and token_id > 2
    )


def test_stop_when_is_asked_after_watched_tokens_about_the_new_tokens(engine: Engine) -> None:
    watched = _letters()
    asked: dict[str, list[tuple[int, ...]]] = {}

    def stopper(key: str, limit: int) -> Any:
        def stop_when(token_ids: Sequence[int]) -> bool:
            asked.setdefault(key, []).append(tuple(token_ids))
            return sum(token in watched for token in token_ids) >= limit

        return stop_when

    requests = [
        replace(request, stop_when=stopper(request.key, 1 + index % 3), watch_token_ids=watched)
        for index, request in enumerate(_requests(6, max_new_tokens=24))
    ]
    segments = generate_all(engine, requests)
    assert asked
    for index, (request, segment) in enumerate(zip(requests, segments, strict=True)):
        count = sum(token in watched for token in segment.token_ids)
        assert (count == 1 + index % 3 and segment.token_ids[-1] in watched) or len(segment.token_ids) == 24
        for token_ids in asked.get(request.key, []):
            assert token_ids[-1] in watched
            assert token_ids == segment.token_ids[: len(token_ids)]


def _with_follow_ups(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, list[Segment]]:
    heard: dict[str, list[Segment]] = {request.key: [] for request in requests}

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        heard[request.key].append(segment)
        if len(heard[request.key]) == 3:
            return None
        return replace(request, token_ids=(*request.token_ids, *segment.token_ids, 70, 71))

    follow: FollowUp = follow_up
    engine.generate(requests, follow)
    return heard


def test_follow_ups_are_answered_until_there_is_none(engine: Engine) -> None:
    heard = _with_follow_ups(engine, _requests(7, max_new_tokens=3))
    assert {key: len(segments) for key, segments in heard.items()} == {str(index): 3 for index in range(7)}
    assert all(len(segment.token_ids) == 3 for segments in heard.values() for segment in segments)


def test_a_follow_up_is_what_a_fresh_request_for_the_same_sequence_would_be(engine: Engine) -> None:
    (request,) = _requests(1, max_new_tokens=3)
    first, second, _ = _with_follow_ups(engine, [request])["0"]
    (fresh,) = generate_all(engine, [replace(request, token_ids=(*request.token_ids, *first.token_ids, 70, 71))])
    assert fresh.token_ids == second.token_ids
    assert fresh.behaviour_logprobs == pytest.approx(second.behaviour_logprobs, abs=1e-2)


def test_the_same_requests_give_the_same_tokens_whatever_stands_beside_them(engine: Engine) -> None:
    requests = _requests(9)
    together = [segment.token_ids for segment in generate_all(engine, requests)]
    assert [segment.token_ids for segment in generate_all(engine, requests)] == together
    alone = [generate_all(engine, [request])[0].token_ids for request in requests[:4]]
    assert alone == together[:4]


def test_seeds_decide_the_draws(engine: Engine) -> None:
    requests = [make_request(40, 41, 42, key=str(seed), seed=seed) for seed in range(6)]
    assert len({segment.token_ids for segment in generate_all(engine, requests)}) >= 5


def test_segments_carry_the_version_that_was_loaded(engine: Engine) -> None:
    engine.load_adapter(None, policy_version=5)
    assert generate_all(engine, _requests(2))[0].policy_version == 5
    engine.load_adapter(None, policy_version=0)
    assert generate_all(engine, _requests(2))[0].policy_version == 0


def test_what_a_follow_up_raises_passes_through_and_the_engine_goes_on(engine: Engine) -> None:
    class OddError(Exception):
        pass

    def fail(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        raise OddError

    with pytest.raises(OddError):
        engine.generate(_requests(6), fail)
    assert len(generate_all(engine, _requests(6))) == 6


def test_nothing_to_do_is_done_at_once(engine: Engine) -> None:
    assert generate_all(engine, []) == []
