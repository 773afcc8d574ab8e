"""Collect groups of rollouts, chunk by chunk, running the tool calls in them. Knows no reward and no training.

A rollout may gain `chunk_tokens` new tokens in one step; what is unfinished then is carried to the next step as token ids
(MiniCPM4, arXiv:2506.07900; METHODS of the README). With `chunk_tokens = max_tokens` every rollout ends in its first step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edge_rl.config import RolloutConfig
from edge_rl.rollout.filters import garble_reason
from edge_rl.rollout.turns import (
    THINK_CLOSE,
    THINK_OPEN,
    Codec,
    fence_token_ids,
    find_tool_call,
    is_thinking,
    tool_result,
    turn_texts,
)
from edge_rl.types import (
    Author,
    Engine,
    Execution,
    GenerationRequest,
    Group,
    Interpreter,
    Prompt,
    Rollout,
    Segment,
    Session,
    StopReason,
    derive_seed,
)


class _Attempt:
    """A rollout under way: what it wrote in this step, its budget, and its interpreter."""

    def __init__(self, rollout: Rollout, budget: int) -> None:
        self.rollout = rollout
        self.budget = budget
        self.segments = list(rollout.segments)
        self.executions = list(rollout.executions)
        self.num_tokens = sum(len(segment.token_ids) for segment in self.segments)
        self.stop_reason: StopReason | None = None
        self.session: Session | None = None

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.num_tokens += len(segment.token_ids)


class Collector:
    """Turns prompts into finished groups; the engine and the interpreter arrive as arguments."""

    def __init__(
        self,
        engine: Engine,
        interpreter: Interpreter,
        codec: Codec,
        settings: RolloutConfig,
        *,
        seed: int,
        stop_token_ids: Iterable[int],
    ) -> None:
        """`seed`: of the run; every rollout's seed is derived from it. `stop_token_ids` end the policy's turn."""
        self._engine = engine
        self._interpreter = interpreter
        self._codec = codec
        self._settings = settings
        self._seed = seed
        self._stop_token_ids = frozenset(stop_token_ids)
        self._watch_token_ids = fence_token_ids(codec) if settings.max_tool_calls else frozenset[int]()

    def collect(
        self,
        next_prompts: Callable[[int], Sequence[Prompt]],
        carried: Sequence[Group],
        *,
        step: int,
        num_groups: int | None = None,
        first_index: int = 0,
    ) -> tuple[list[Group], list[Group]]:
        """Return (finished groups to train on, groups to carry to the next step).

        `next_prompts(n)` gives n fresh prompts. With chunks, twice the step's groups are kept under way so that long
        rollouts do not hold up the step; without, exactly the step's groups are made. `first_index` numbers the fresh
        groups where a step collects more than once, so that their seeds differ.
        """
        wanted = num_groups or self._settings.prompts_per_step
        is_chunked = self._settings.chunk_tokens < self._settings.max_tokens
        under_way = wanted * 2 if is_chunked else wanted
        groups = list(carried)
        drawn = first_index
        while True:
            finished = [group for group in groups if group.is_finished]
            if len(finished) >= wanted:
                rest = [group for group in groups if not group.is_finished]
                return finished[:wanted], [*finished[wanted:], *rest]
            missing = max(under_way - len(groups), 0)
            prompts = next_prompts(missing) if missing else ()
            groups += [self._new_group(prompt, step, drawn + index) for index, prompt in enumerate(prompts)]
            drawn += len(prompts)
            groups = self._advance(groups, step)

    def sample(self, prompts: Sequence[Prompt], num_samples: int, *, name: str) -> list[Rollout]:
        """Return `num_samples` finished rollouts of every prompt, without chunks; `name` enters the seeds."""
        groups = [
            Group(
                id=f"{name}/{prompt.sample_id}",
                sample_id=prompt.sample_id,
                born=0,
                rollouts=tuple(
                    Rollout(prompt=prompt, group_id=f"{name}/{prompt.sample_id}", member=member)
                    for member in range(num_samples)
                ),
            )
            for prompt in prompts
        ]
        finished = self._advance(groups, step=0, for_training=False)
        return [rollout for group in finished for rollout in group.rollouts]

    def _new_group(self, prompt: Prompt, step: int, index: int) -> Group:
        group_id = f"{step}-{index}-{prompt.sample_id}"
        members = range(self._settings.group_size)
        rollouts = tuple(Rollout(prompt=prompt, group_id=group_id, member=member) for member in members)
        return Group(id=group_id, sample_id=prompt.sample_id, rollouts=rollouts, born=step)

    def _advance(self, groups: Sequence[Group], step: int, *, for_training: bool = True) -> list[Group]:
        """Let every unfinished rollout write one chunk; to its end where the group is old, or not for training."""
        settings = self._settings
        attempts: dict[str, _Attempt] = {}
        for group in groups:
            is_limited = for_training and step - group.born < settings.max_group_age
            budget = settings.chunk_tokens if is_limited else settings.max_tokens
            for rollout in group.rollouts:
                if not rollout.is_finished:
                    attempts[f"{rollout.group_id}#{rollout.member}"] = _Attempt(rollout, budget)
        requests = [self._request(key, attempt) for key, attempt in attempts.items()]

        def follow_up(request: GenerationRequest, segment: Segment) -> GenerationRequest | None:
            attempt = attempts[request.key]
            attempt.append(segment)
            attempt.budget -= len(segment.token_ids)
            self._settle(attempt)
            if attempt.stop_reason is None and attempt.budget > 0:
                return self._request(request.key, attempt)
            self._close(attempt)
            return None

        try:
            self._engine.generate(requests, follow_up)
        finally:
            for attempt in attempts.values():
                self._close(attempt)
        results = [
            replace(group, rollouts=tuple(self._result(rollout, attempts) for rollout in group.rollouts))
            for group in groups
        ]
        # A measurement judges what the model writes, whatever it looks like.
        return [self._mark_garbled(group) for group in results] if for_training and settings.garble_filter else results

    @staticmethod
    def _mark_garbled(group: Group) -> Group:
        rollouts = tuple(
            replace(rollout, stop_reason=StopReason.GARBLED)
            if rollout.is_finished and garble_reason(rollout) is not None
            else rollout
            for rollout in group.rollouts
        )
        return replace(group, rollouts=rollouts)

    def _request(self, key: str, attempt: _Attempt) -> GenerationRequest:
        rollout = attempt.rollout
        open_turn = self._open_turn(attempt)

        def is_tool_call(new_token_ids: Sequence[int]) -> bool:
            return (
                find_tool_call(self._codec.decode([*open_turn, *new_token_ids], skip_special_tokens=True)) is not None
            )

        return GenerationRequest(
            key=key,
            token_ids=(*rollout.prompt.token_ids, *(t for segment in attempt.segments for t in segment.token_ids)),
            max_new_tokens=min(
                attempt.budget, self._settings.max_tokens - attempt.num_tokens, self._think_budget(attempt)
            ),
            stop_token_ids=self._stop_token_ids,
            watch_token_ids=self._watch_token_ids,
            stop_when=is_tool_call,
            temperature=self._settings.temperature,
            seed=derive_seed(self._seed, "rollout", rollout.group_id, rollout.member),
        )

    def _think_budget(self, attempt: _Attempt) -> int:
        """Return the tokens that the policy may write before its think block is looked at; all of them without a budget."""
        left = self._settings.think_tokens - _own_tokens(attempt)
        return left if left > 0 else self._settings.max_tokens

    def _whole_text(self, attempt: _Attempt) -> str:
        """Return what was written, with the think block that the prompt may have opened."""
        written = [token for segment in attempt.segments for token in segment.token_ids]
        return self._opened(attempt.rollout.prompt) + self._codec.decode(written, skip_special_tokens=True)

    def _opened(self, prompt: Prompt) -> str:
        """Return the opening of a think block where the prompt ends with one, else nothing."""
        end = self._codec.decode(prompt.token_ids[-8:], skip_special_tokens=False).rstrip()
        return f"{THINK_OPEN}\n" if end.endswith(THINK_OPEN) else ""

    @staticmethod
    def _open_turn(attempt: _Attempt) -> list[int]:
        """Return the policy tokens since the last tool result: a call may have begun in an earlier chunk."""
        tokens: list[int] = []
        for segment in attempt.segments:
            tokens = [] if segment.author is Author.TOOL else [*tokens, *segment.token_ids]
        return tokens

    def _settle(self, attempt: _Attempt) -> None:
        """Decide what the segment just written means: an end, a tool call, or neither."""
        settings = self._settings
        if attempt.segments[-1].token_ids[-1] in self._stop_token_ids:
            attempt.stop_reason = StopReason.STOP
            return
        turn = self._codec.decode(self._open_turn(attempt), skip_special_tokens=True)
        code = find_tool_call(turn) if settings.max_tool_calls else None
        if self._is_thought_out(attempt):
            self._append_foreign(attempt, Author.LIMIT, f"\n{THINK_CLOSE}\n\n")
        elif code is not None:
            if len(attempt.executions) >= settings.max_tool_calls:
                attempt.stop_reason = StopReason.TOOL_LIMIT
                return
            self._run_tool(attempt, code)
        if attempt.num_tokens >= settings.max_tokens:
            attempt.stop_reason = StopReason.LENGTH

    def _is_thought_out(self, attempt: _Attempt) -> bool:
        """Whether a think block is open beyond its budget."""
        budget = self._settings.think_tokens
        return 0 < budget <= _own_tokens(attempt) and is_thinking(self._whole_text(attempt))

    def _append_foreign(self, attempt: _Attempt, author: Author, text: str) -> None:
        """Append what the policy did not write; where it does not fit any more, the rollout ends without it."""
        token_ids = tuple(self._codec.encode(text, add_special_tokens=False))
        if attempt.num_tokens + len(token_ids) > self._settings.max_tokens:
            attempt.stop_reason = StopReason.LENGTH  # nobody would read it; the length limit is kept
        else:
            attempt.append(Segment(author=author, token_ids=token_ids))

    def _run_tool(self, attempt: _Attempt, code: str) -> None:
        if attempt.session is None:
            attempt.session = self._interpreter.open()
            self._replay(attempt)
        execution = attempt.session.run(code)
        attempt.executions.append(execution)
        text = tool_result(execution, max_chars=self._settings.tool_output_chars)
        self._append_foreign(attempt, Author.TOOL, text)

    def _replay(self, attempt: _Attempt) -> None:
        """Bring a fresh session to the state after the calls of earlier steps: sessions do not outlive a step."""
        assert attempt.session is not None
        done: list[Execution] = attempt.executions
        for turn in turn_texts(attempt.segments, self._codec)[: len(done)]:
            code = find_tool_call(turn)
            if code is not None:
                attempt.session.run(code)

    def _close(self, attempt: _Attempt) -> None:
        if attempt.session is not None:
            attempt.session.close()
            attempt.session = None

    def _result(self, rollout: Rollout, attempts: dict[str, _Attempt]) -> Rollout:
        attempt = attempts.get(f"{rollout.group_id}#{rollout.member}")
        if attempt is None:
            return rollout
        text = policy_text = ""
        if attempt.stop_reason is not None:
            token_ids = [token for segment in attempt.segments for token in segment.token_ids]
            text = self._codec.decode(token_ids, skip_special_tokens=True)
            policy_text = self._opened(rollout.prompt) + "\n".join(turn_texts(attempt.segments, self._codec))
        return replace(
            rollout,
            segments=tuple(attempt.segments),
            executions=tuple(attempt.executions),
            stop_reason=attempt.stop_reason,
            text=text,
            policy_text=policy_text,
        )


def _own_tokens(attempt: _Attempt) -> int:
    return sum(len(segment.token_ids) for segment in attempt.segments if segment.author is Author.POLICY)
