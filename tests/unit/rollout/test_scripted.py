"""The public fake: it cuts replies where a real engine would stop."""

from collections.abc import Sequence

import pytest

from edge_rl.errors import EngineError
from edge_rl.rollout.engines.scripted import ScriptedEngine
from edge_rl.types import Author, GenerationRequest, Segment, generate_all
from tests.builders import make_request


def test_scripted_engine_replays_replies_in_the_order_of_the_requests() -> None:
    engine = ScriptedEngine([(1, 2), (3,)], logprob=-0.25)
    first, second = generate_all(engine, [make_request(key="a"), make_request(key="b")])
    assert first.token_ids == (1, 2)
    assert first.behaviour_logprobs == (-0.25, -0.25)
    assert first.author is Author.POLICY
    assert second.token_ids == (3,)


def test_scripted_engine_asks_a_function_for_each_reply() -> None:
    engine = ScriptedEngine(lambda request: (request.token_ids[-1] + 1,))
    assert [segment.token_ids for segment in generate_all(engine, [make_request(4), make_request(9, key="b")])] == [
        (5,),
        (10,),
    ]


def test_scripted_engine_answers_follow_ups_after_the_other_requests() -> None:
    engine = ScriptedEngine([(1,), (2,), (3,)])
    heard: list[tuple[str, tuple[int, ...]]] = []

    def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
        heard.append((request.key, segment.token_ids))
        return make_request(5, 6, 7, 1, 9, key="a") if segment.token_ids == (1,) else None

    engine.generate([make_request(key="a"), make_request(key="b")], follow_up)
    assert heard == [("a", (1,)), ("b", (2,)), ("a", (3,))]


def test_scripted_engine_cuts_at_the_limit_at_a_stop_token_and_at_stop_when() -> None:
    def is_second(written: Sequence[int]) -> bool:
        return len(written) == 2

    reply = (4, 5, 4, 9, 4)
    limit = make_request(max_new_tokens=3)
    stop = make_request(stop_token_ids=frozenset({9}))
    watched = make_request(watch_token_ids=frozenset({5}), stop_when=is_second)
    unwatched = make_request(watch_token_ids=frozenset({9}), stop_when=is_second)
    segments = [generate_all(ScriptedEngine([reply]), [request])[0] for request in (limit, stop, watched, unwatched)]
    assert [segment.token_ids for segment in segments] == [(4, 5, 4), (4, 5, 4, 9), (4, 5), reply]


def test_scripted_engine_stamps_the_version_that_was_loaded() -> None:
    engine = ScriptedEngine([(1,), (1,)])
    assert generate_all(engine, [make_request()])[0].policy_version == 0
    engine.load_adapter(None, policy_version=7)
    assert generate_all(engine, [make_request()])[0].policy_version == 7


def test_scripted_engine_says_which_request_found_no_reply() -> None:
    with pytest.raises(EngineError, match="no reply left for request b"):
        generate_all(ScriptedEngine([(1,)]), [make_request(key="a"), make_request(key="b")])
