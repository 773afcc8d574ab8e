"""Groups of rollouts with tool calls and chunks, on an engine that replays a script."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edge_rl.config import RolloutConfig
from edge_rl.errors import EngineError, SandboxError
from edge_rl.rollout.collector import Collector
from edge_rl.rollout.engines.scripted import ScriptedEngine
from edge_rl.types import (
    Author,
    ExecutionStatus,
    FollowUp,
    GenerationRequest,
    Group,
    Prompt,
    Rollout,
    Segment,
    StopReason,
)
from tests.builders import CountingInterpreter, CountingSession, PieceCodec, make_prompt, make_rollout, policy

CODEC = PieceCodec()
EOS = (0,)
CALL = "```python\nprint(x)\n```"


def tokens(text: str) -> tuple[int, ...]:
    return tuple(CODEC.encode(text))


class Recorder(ScriptedEngine):
    """Replays per rollout: `scripts[key]` is what that rollout writes in all its turns, one token after the other."""

    def __init__(self, scripts: Callable[[str], Sequence[int]]) -> None:
        self.requests: list[GenerationRequest] = []
        self._written: dict[str, int] = {}
        self._scripts = scripts
        super().__init__(self._next)

    def generate(self, requests: Sequence[GenerationRequest], follow_up: FollowUp) -> None:
        def count(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
            self._written[request.key] = self._written.get(request.key, 0) + len(segment.token_ids)
            return follow_up(request, segment)

        super().generate(requests, count)

    def _next(self, request: GenerationRequest) -> Sequence[int]:
        self.requests.append(request)
        return self._scripts(request.key)[self._written.get(request.key, 0) :]


class Setting:
    """A collector with its parts at hand."""

    def __init__(
        self,
        script: Sequence[int] | Callable[[str], Sequence[int]],
        *,
        seed: int = 0,
        stops: Sequence[int] = (0,),
        **settings: Any,
    ) -> None:
        given: dict[str, Any] = {"group_size": 2, "prompts_per_step": 1, "max_tokens": 60, "chunk_tokens": 60}
        self.engine = Recorder(script if callable(script) else lambda key: script)
        self.interpreter = CountingInterpreter()
        self.collector = Collector(
            self.engine, self.interpreter, CODEC, RolloutConfig(**(given | settings)), seed=seed, stop_token_ids=stops
        )
        self.num_prompts = 0

    def prompts(self, count: int) -> list[Prompt]:
        self.num_prompts += count
        return [make_prompt(64, 65, sample_id=f"s{self.num_prompts - count + index}") for index in range(count)]

    def collect(
        self, carried: Sequence[Group] = (), *, step: int = 0, **options: Any
    ) -> tuple[list[Group], list[Group]]:
        return self.collector.collect(self.prompts, carried, step=step, **options)

    def first(self) -> Rollout:
        return self.collect()[0][0].rollouts[0]


def authors(rollout: Rollout) -> list[Author]:
    return [segment.author for segment in rollout.segments]


# -- one rollout -----------------------------------------------------------------------------------------------------


def test_collect_returns_the_groups_of_a_step() -> None:
    setting = Setting((*tokens("So 4."), *EOS), prompts_per_step=3, group_size=2)
    groups, carried = setting.collect(step=5)
    assert carried == []
    assert [group.id for group in groups] == ["5-0-s0", "5-1-s1", "5-2-s2"]
    assert [group.sample_id for group in groups] == ["s0", "s1", "s2"]
    assert {group.born for group in groups} == {5}
    for group in groups:
        assert [(rollout.group_id, rollout.member) for rollout in group.rollouts] == [(group.id, 0), (group.id, 1)]
        for rollout in group.rollouts:
            assert rollout.stop_reason is StopReason.STOP
            assert rollout.token_ids == (*tokens("So 4."), 0)
            assert rollout.text == rollout.policy_text == "So 4."
            assert rollout.behaviour_logprobs == (-0.5,) * 6


def test_requests_say_what_the_engine_must_know() -> None:
    setting = Setting(EOS, temperature=0.7, max_tokens=33, chunk_tokens=33)
    setting.collect()
    first, second = setting.engine.requests
    assert first.token_ids == (64, 65)
    assert first.max_new_tokens == 33
    assert first.stop_token_ids == {0}
    assert first.temperature == 0.7
    assert (first.key, second.key) == ("0-0-s0#0", "0-0-s0#1")


def test_seeds_differ_by_run_group_and_member_and_repeat() -> None:
    def seeds(seed: int, step: int, first_index: int = 0) -> list[int]:
        setting = Setting(EOS, prompts_per_step=2, seed=seed)
        setting.collect(step=step, first_index=first_index)
        return [request.seed for request in setting.engine.requests]

    assert seeds(0, 0) == seeds(0, 0)
    everything = [*seeds(0, 0), *seeds(1, 0), *seeds(0, 1), *seeds(0, 0, first_index=2)]
    assert len(set(everything)) == len(everything) == 16


def test_a_tool_call_is_run_and_its_result_follows_as_tool_tokens() -> None:
    setting = Setting((*tokens(f"See {CALL}"), *tokens("So 1."), *EOS))
    rollout = setting.first()
    assert authors(rollout) == [Author.POLICY, Author.TOOL, Author.POLICY]
    result = "\n```output\n1\n```\n"
    assert rollout.segments[1].token_ids == tokens(result)
    assert rollout.text == f"See {CALL}{result}So 1."
    assert rollout.policy_text == f"See {CALL}\nSo 1."
    assert [execution.stdout for execution in rollout.executions] == ["1\n"]
    assert setting.interpreter.sessions[0].codes == ["print(x)\n"]
    # the second request continues prompt, call and result
    assert setting.engine.requests[2].token_ids == (64, 65, *tokens(f"See {CALL}"), *tokens(result))


def test_a_call_that_fails_shows_its_error() -> None:
    setting = Setting((*tokens("```python\nboom\n```"), *EOS))
    rollout = setting.first()
    assert "\n```output\nNameError: name 'boom' is not defined\n```\n" in rollout.text
    assert rollout.executions[0].status is ExecutionStatus.ERROR
    assert rollout.stop_reason is StopReason.STOP


def test_state_persists_between_the_calls_of_a_rollout_and_not_between_rollouts() -> None:
    setting = Setting((*tokens(CALL), *tokens(CALL), *tokens(CALL), *EOS))
    groups, _ = setting.collect()
    for rollout in groups[0].rollouts:
        assert [execution.stdout for execution in rollout.executions] == ["1\n", "2\n", "3\n"]
    assert len(setting.interpreter.sessions) == 2
    assert all(session.is_closed for session in setting.interpreter.sessions)


def test_no_session_is_opened_for_a_rollout_without_a_call() -> None:
    setting = Setting((*tokens("So 4."), *EOS))
    setting.collect()
    assert setting.interpreter.sessions == []


def test_one_call_more_than_allowed_ends_the_rollout() -> None:
    setting = Setting((*tokens(CALL), *tokens(CALL), *tokens(CALL), *EOS), max_tool_calls=2)
    rollout = setting.first()
    assert rollout.stop_reason is StopReason.TOOL_LIMIT
    assert len(rollout.executions) == 2
    assert setting.interpreter.sessions[0].codes == ["print(x)\n"] * 2
    assert authors(rollout)[-1] is Author.POLICY
    assert rollout.policy_text == "\n".join([CALL] * 3)


def test_a_limit_of_no_calls_makes_fences_plain_text() -> None:
    setting = Setting((*tokens(CALL), *tokens("So."), *EOS), max_tool_calls=0)
    rollout = setting.first()
    assert rollout.stop_reason is StopReason.STOP
    assert rollout.executions == ()
    assert len(rollout.segments) == 1
    assert setting.engine.requests[0].watch_token_ids == frozenset()


def test_an_open_block_at_the_end_of_turn_is_no_call() -> None:
    setting = Setting((*tokens("```python\nprint(x)\n"), *EOS))
    rollout = setting.first()
    assert rollout.stop_reason is StopReason.STOP
    assert rollout.executions == ()


def test_length_ends_a_rollout_at_exactly_max_tokens() -> None:
    setting = Setting(tokens("a" * 100), max_tokens=12, chunk_tokens=12)
    rollout = setting.first()
    assert rollout.stop_reason is StopReason.LENGTH
    assert len(rollout.token_ids) == 12


def test_end_of_turn_as_the_last_allowed_token_is_a_stop() -> None:
    setting = Setting((*tokens("a" * 11), *EOS), max_tokens=12, chunk_tokens=12)
    assert setting.first().stop_reason is StopReason.STOP


def test_tool_tokens_count_for_the_length() -> None:
    call, result = len(tokens(CALL)), len(tokens("\n```output\n1\n```\n"))
    setting = Setting((*tokens(CALL), *tokens("a" * 50)), max_tokens=call + result + 3, chunk_tokens=call + result + 3)
    rollout = setting.first()
    assert rollout.stop_reason is StopReason.LENGTH
    assert len(rollout.token_ids) == call + result + 3
    assert rollout.num_policy_tokens == call + 3


@pytest.mark.parametrize("room", [2, -1, 0])
def test_a_tool_result_that_passes_the_limit_ends_the_rollout_without_it(room: int) -> None:
    """`room`: tokens after the call; below 1, those that the result lacks of fitting."""
    call, result = len(tokens(CALL)), len(tokens("\n```output\n1\n```\n"))
    limit = call + (room if room > 0 else result + room)
    setting = Setting((*tokens(CALL), *tokens("a" * 50)), max_tokens=limit, chunk_tokens=limit)
    rollout = setting.first()
    fits = room == 0
    assert rollout.stop_reason is StopReason.LENGTH
    assert authors(rollout) == [Author.POLICY, *[Author.TOOL] * fits]
    assert len(rollout.token_ids) == call + result * fits <= limit
    assert len(rollout.executions) == 1
    assert len(setting.engine.requests) == 2  # one per member, no follow-up


def test_any_of_the_stop_tokens_ends_the_turn() -> None:
    for stop in (0, 67):
        rollout = Setting((*tokens("aa"), stop, *tokens("bb")), stops=(0, 67)).first()
        assert rollout.stop_reason is StopReason.STOP
        assert rollout.token_ids[-1] == stop
        assert len(rollout.token_ids) == 3


def test_a_long_result_is_shortened() -> None:
    class Talkative(CountingSession):
        def run(self, code: str) -> Any:
            return replace(super().run(code), stdout="y" * 1000)

    setting = Setting((*tokens(CALL), *EOS), tool_output_chars=40, max_tokens=90, chunk_tokens=90)
    sessions = [Talkative(), Talkative()]
    setting.interpreter.open = lambda: sessions.pop()
    result = setting.first().text.removeprefix(CALL)
    assert result == f"\n```output\n{'y' * 17}\n...\n{'y' * 18}\n```\n"


def test_a_result_that_looks_like_a_call_is_not_run() -> None:
    class Quoting(CountingSession):
        def run(self, code: str) -> Any:
            return replace(super().run(code), stdout="```python\nboom")

    # the result closes with a fence, so that result and blank line together read like a call of the policy
    call = len(tokens(CALL))
    setting = Setting((*tokens(CALL), *tokens("\n"), *tokens("a"), *EOS), chunk_tokens=call + 1)
    sessions = [Quoting() for _ in range(9)]
    setting.interpreter.open = lambda: sessions.pop()
    finished, _ = setting.collect()
    for rollout in finished[0].rollouts:
        assert len(rollout.executions) == 1
        assert rollout.policy_text == f"{CALL}\n\na"
        assert rollout.stop_reason is StopReason.STOP


# -- chunks ----------------------------------------------------------------------------------------------------------


def chunked(script: Sequence[int] | Callable[[str], Sequence[int]], chunk_tokens: int, **settings: Any) -> Setting:
    return Setting(script, chunk_tokens=chunk_tokens, **settings)


def advance(setting: Setting, groups: Sequence[Group], *, step: int) -> list[Group]:
    """One chunk for each of the groups, which are all that is wanted."""
    finished, carried = setting.collect(groups, step=step)
    return [*finished, *carried]


def test_twice_the_groups_of_a_step_are_under_way_with_chunks() -> None:
    # rollouts of the first group are short, the others need three chunks
    def script(key: str) -> Sequence[int]:
        return (*tokens("ab"), 0) if "s0" in key else (*tokens("a" * 10), 0)

    setting = chunked(script, 4)
    finished, carried = setting.collect()
    assert [group.sample_id for group in finished] == ["s0"]
    assert [group.sample_id for group in carried] == ["s1"]
    assert [len(rollout.token_ids) for rollout in carried[0].rollouts] == [4, 4]
    assert all(rollout.stop_reason is None and rollout.text == "" for rollout in carried[0].rollouts)


def test_carried_groups_go_on_from_their_token_ids_and_are_topped_up() -> None:
    script = (*tokens("abcdef"), 0)
    setting = chunked(script, 4)
    half = Group(
        id="0-0-old",
        sample_id="old",
        born=0,
        rollouts=tuple(
            make_rollout(policy(*script[:4]), prompt=(64,), group_id="0-0-old", member=member, stop_reason=None)
            for member in range(2)
        ),
    )
    finished, carried = setting.collect([half], step=1)
    assert [group.id for group in finished] == ["0-0-old"]
    assert finished[0].born == 0
    assert setting.num_prompts == 1 and carried[0].born == 1
    first = setting.engine.requests[0]
    assert first.token_ids == (64, *script[:4])


def test_a_finished_group_is_handed_out_once_and_first() -> None:
    setting = chunked((*tokens("ab"), 0), 4, prompts_per_step=2)
    finished, carried = setting.collect(step=0)
    assert [group.sample_id for group in finished] == ["s0", "s1"]
    assert [group.sample_id for group in carried] == ["s2", "s3"]
    assert all(group.is_finished for group in carried)
    requests = len(setting.engine.requests)
    finished, carried = setting.collect(carried, step=1)
    assert [group.sample_id for group in finished] == ["s2", "s3"]
    assert len(setting.engine.requests) == requests  # nothing was generated
    assert carried == []


def test_a_chunk_starts_a_new_segment_with_its_own_version() -> None:
    setting = chunked((*tokens("abcdef"), 0), 4)
    setting.engine.load_adapter(None, policy_version=3)
    groups = [group for group in advance(setting, [], step=3) if group.sample_id == "s0"]
    rollout = groups[0].rollouts[0]
    assert [len(segment.token_ids) for segment in rollout.segments] == [4, 3]
    assert rollout.policy_versions == (3,) * 7
    assert rollout.stop_reason is StopReason.STOP


def _half_way(script: Sequence[int], *, born: int, done: int) -> Group:
    return Group(
        id="g",
        sample_id="s",
        born=born,
        rollouts=tuple(
            make_rollout(policy(*script[:done]), prompt=(64,), group_id="g", member=member, stop_reason=None)
            for member in range(2)
        ),
    )


@pytest.mark.parametrize(("step", "expected"), [(3, 5), (4, 38), (5, 38)])
def test_a_group_of_the_greatest_age_is_finished_without_a_chunk_limit(step: int, expected: int) -> None:
    script = tokens("a" * 60)
    setting = chunked(script, 5, max_tokens=40, max_group_age=4)
    setting.collect([_half_way(script, born=0, done=2)], step=step)
    assert setting.engine.requests[0].max_new_tokens == expected


def test_end_of_turn_at_exactly_the_chunk_edge_is_a_stop() -> None:
    setting = chunked((*tokens("abc"), 0), 4)
    finished, _ = setting.collect()
    assert [rollout.stop_reason for rollout in finished[0].rollouts] == [StopReason.STOP] * 2
    assert all(len(rollout.segments) == 1 for rollout in finished[0].rollouts)


def test_a_chunk_edge_is_not_a_length_stop() -> None:
    script = (*tokens("a" * 20), 0)
    setting = chunked(script, 5, max_tokens=30)
    finished, _ = setting.collect()
    rollout = finished[0].rollouts[0]
    assert rollout.stop_reason is StopReason.STOP
    assert [len(segment.token_ids) for segment in rollout.segments] == [5, 5, 5, 5, 1]


def test_the_last_chunk_is_cut_at_max_tokens() -> None:
    setting = chunked(tokens("a" * 60), 5, max_tokens=13)
    finished, _ = setting.collect()
    rollout = finished[0].rollouts[0]
    assert rollout.stop_reason is StopReason.LENGTH
    assert [len(segment.token_ids) for segment in rollout.segments] == [5, 5, 3]


@pytest.mark.parametrize("chunk_tokens", range(1, 13))
def test_a_call_that_crosses_a_chunk_edge_is_found_wherever_the_edge_lies(chunk_tokens: int) -> None:
    # the closing fence is "`" and "``": an edge may fall inside it
    call = (*tokens("ab"), *tokens("```python\n"), *tokens("print(x)"), *tokens("\n"), 4, 3)
    assert CODEC.decode(call) == f"ab{CALL}"
    script = (*call, *tokens("xyz"), 0)
    setting = chunked(script, chunk_tokens)
    finished, _ = setting.collect()
    whole = Setting(script).first()
    for rollout in finished[0].rollouts:
        assert rollout.token_ids == whole.token_ids
        assert rollout.loss_mask == whole.loss_mask
        assert rollout.executions == whole.executions
        assert rollout.text == whole.text and rollout.policy_text == whole.policy_text
        assert rollout.stop_reason is StopReason.STOP


def test_tool_tokens_are_not_taken_from_the_chunk() -> None:
    # the call, and then 3 tokens of the chunk are left, however long the result is
    script = (*tokens(CALL), *tokens("abcdef"), 0)
    call = len(tokens(CALL))
    setting = chunked(script, call + 3)
    setting.collect()
    follow_up = next(request for request in setting.engine.requests if len(request.token_ids) > 2)
    assert follow_up.max_new_tokens == 3


def test_a_call_in_a_later_chunk_finds_the_state_of_the_earlier_ones() -> None:
    script = (*tokens("```python\nx = 1\n```"), *tokens("abcd"), *tokens("```python\nx += 1\n```"), *tokens("b"), 0)
    setting = chunked(script, len(tokens("```python\nx = 1\n```")) + 2)
    finished, _ = setting.collect()
    rollout = finished[0].rollouts[0]
    assert [execution.stdout for execution in rollout.executions] == ["1\n", "2\n"]
    replayed = [session.codes for session in setting.interpreter.sessions if len(session.codes) == 2]
    assert replayed and all(codes == ["x = 1\n", "x += 1\n"] for codes in replayed)
    assert all(session.is_closed for session in setting.interpreter.sessions)


def test_a_chunk_without_a_call_opens_no_session() -> None:
    script = (*tokens(CALL), *tokens("a" * 10), 0)
    setting = chunked(script, len(tokens(CALL)))
    finished, carried = setting.collect()
    rollouts = [rollout for group in (*finished, *carried) for rollout in group.rollouts]
    assert len(setting.interpreter.sessions) == len(rollouts)


def test_ids_of_a_step_do_not_repeat_where_it_collects_more_than_once() -> None:
    setting = chunked((*tokens("a" * 10), 0), 4, prompts_per_step=2)
    first, carried = setting.collect(step=0, num_groups=1)
    second, rest = setting.collect(carried, step=0, num_groups=2, first_index=4)
    ids = [group.id for group in (*first, *second, *rest)]
    assert len(set(ids)) == len(ids)


# -- failures --------------------------------------------------------------------------------------------------------


class Failing(Recorder):
    """Fails at its third reply, when sessions are open."""

    def _next(self, request: GenerationRequest) -> Sequence[int]:
        if len(self.requests) == 2:
            raise EngineError("out of memory")
        return super()._next(request)


def test_sessions_are_closed_when_the_engine_fails() -> None:
    interpreter = CountingInterpreter()
    engine = Failing(lambda key: (*tokens(CALL), *tokens("a"), 0))
    collector = Collector(engine, interpreter, CODEC, RolloutConfig(group_size=2), seed=0, stop_token_ids=(0,))
    with pytest.raises(EngineError, match="out of memory"):
        collector.collect(lambda count: [make_prompt(64)] * count, [], step=0, num_groups=1)
    assert len(interpreter.sessions) == 2
    assert all(session.is_closed for session in interpreter.sessions)


def test_a_sandbox_that_cannot_be_opened_stops_the_collection() -> None:
    class Broken(CountingInterpreter):
        def open(self) -> Any:
            raise SandboxError("no session can be had")

    collector = Collector(
        Recorder(lambda key: (*tokens(CALL), 0)),
        Broken(),
        CODEC,
        RolloutConfig(group_size=2),
        seed=0,
        stop_token_ids=(0,),
    )
    with pytest.raises(SandboxError, match="no session can be had"):
        collector.collect(lambda count: [make_prompt(64)] * count, [], step=0, num_groups=1)


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_a_loop_is_marked_as_garbled_in_training_and_left_as_it_is_in_a_measurement() -> None:
    script = tokens("ab") * 40
    setting = Setting(script, max_tokens=60, chunk_tokens=60)
    (group,), _ = setting.collect()
    assert [rollout.stop_reason for rollout in group.rollouts] == [StopReason.GARBLED] * 2
    assert group.rollouts[0].token_ids == script[:60]
    measured = Setting(script).collector.sample([make_prompt(64, 65)], 1, name="test")
    assert measured[0].stop_reason is StopReason.LENGTH
    kept = Setting(script, garble_filter=False).first()
    assert kept.stop_reason is StopReason.LENGTH


def test_an_unfinished_rollout_is_not_looked_at_for_garble() -> None:
    setting = Setting(tokens("ab") * 40, max_tokens=80, chunk_tokens=50, max_group_age=9)
    _, carried = setting.collect()
    assert carried
    assert all(
        rollout.stop_reason is not StopReason.GARBLED for rollout in carried[0].rollouts if len(rollout.token_ids) < 80
    )


# -- thinking --------------------------------------------------------------------------------------------------------

OPENED = tuple(tokens("<think>\n"))


def _thinking(script: str, *, opened: bool = True, **settings: Any) -> tuple[Setting, Rollout]:
    """A rollout whose prompt opens a think block."""
    setting = Setting((*tokens(script), *EOS), max_tokens=200, chunk_tokens=200, **settings)
    prompt = make_prompt(64, 65, *(OPENED if opened else ()))
    (rollout,) = setting.collector.sample([prompt], 1, name="test")
    return setting, rollout


def test_a_think_block_that_the_prompt_opens_belongs_to_what_is_judged() -> None:
    _, rollout = _thinking("hm</think>4")
    assert rollout.policy_text == "<think>\nhm</think>4"
    assert rollout.text == "hm</think>4"
    _, plain = _thinking("4", opened=False)
    assert plain.policy_text == "4"


def test_a_think_block_beyond_its_budget_is_closed_outside_the_loss() -> None:
    setting, rollout = _thinking("abcdefgh 4", think_tokens=6)
    assert authors(rollout) == [Author.POLICY, Author.LIMIT, Author.POLICY]
    first, closing, last = rollout.segments
    assert len(first.token_ids) == 6
    assert CODEC.decode(closing.token_ids) == "\n</think>\n\n"
    assert rollout.policy_text == "<think>\nabcdef\n</think>\n\ngh 4"
    assert [request.max_new_tokens for request in setting.engine.requests] == [6, 200 - 6 - len(closing.token_ids)]
    assert rollout.loss_mask == (True,) * 6 + (False,) * len(closing.token_ids) + (True,) * len(last.token_ids)


def test_a_think_block_that_is_closed_in_time_is_left_alone() -> None:
    _, rollout = _thinking("a</think>bcdefghijklmnop", think_tokens=14)
    assert set(authors(rollout)) == {Author.POLICY}
    assert rollout.policy_text.endswith("</think>bcdefghijklmnop")


def test_the_budget_is_for_thinking_only() -> None:
    setting, rollout = _thinking("abcdefghijkl", opened=False, think_tokens=6)
    assert set(authors(rollout)) == {Author.POLICY}
    # once it is known that nothing is thought, the rest is written in one go
    assert len(setting.engine.requests) == 2


def test_a_tool_call_after_thinking_is_run() -> None:
    setting, rollout = _thinking("abcdef" + CALL + "ok", think_tokens=6)
    assert authors(rollout) == [Author.POLICY, Author.LIMIT, Author.POLICY, Author.TOOL, Author.POLICY]
    assert len(setting.interpreter.sessions) == 1


def test_a_closing_that_does_not_fit_ends_the_rollout() -> None:
    setting = Setting((*tokens("abcdefghijkl"), *EOS), max_tokens=8, chunk_tokens=8, think_tokens=6)
    (rollout,) = setting.collector.sample([make_prompt(64, *OPENED)], 1, name="test")
    assert rollout.stop_reason is StopReason.LENGTH
    assert len(rollout.token_ids) == 6


def test_sample_finishes_every_rollout_of_every_prompt_without_chunks() -> None:
    setting = chunked((*tokens("a" * 20), 0), 4)
    prompts = [make_prompt(64, sample_id="a"), make_prompt(65, sample_id="b")]
    rollouts = setting.collector.sample(prompts, 3, name="evaluation")
    assert [(rollout.prompt.sample_id, rollout.member) for rollout in rollouts] == [
        (name, member) for name in "ab" for member in range(3)
    ]
    assert all(len(rollout.segments) == 1 and rollout.stop_reason is StopReason.STOP for rollout in rollouts)


def test_draws_of_sample_depend_on_the_name_and_the_question_only() -> None:
    def seeds(name: str, prompts: Sequence[str]) -> dict[str, int]:
        setting = Setting(EOS)
        setting.collector.sample([make_prompt(64, sample_id=sample_id) for sample_id in prompts], 2, name=name)
        return {request.key: request.seed for request in setting.engine.requests}

    both, alone = seeds("evaluation", ["a", "b"]), seeds("evaluation", ["b"])
    assert {key: both[key] for key in alone} == alone
    assert set(seeds("test", ["a", "b"]).values()).isdisjoint(both.values())
