"""Records in one line each, and small stand-ins for tokenizer and interpreter. Loads no heavy package.

rollout = make_rollout(policy(1, 2), tool(3), policy(4), prompt=(7, 8))
scored = make_scored_group([1.0, 0.0, None], [make_rollout(policy(1)) for _ in range(3)])
"""

from collections.abc import Sequence
from typing import Any

from edge_rl.types import (
    Author,
    Execution,
    ExecutionStatus,
    GenerationRequest,
    Group,
    Prompt,
    Reward,
    Rollout,
    Sample,
    ScoredGroup,
    Segment,
    Session,
    StopReason,
    Verdict,
)


def make_sample(sample_id: str = "s", **fields: Any) -> Sample:
    """Return a sample whose answer is 4 unless told otherwise."""
    usual: dict[str, Any] = {"id": sample_id, "question": "What is 2 + 2?", "answer": "4"}
    return Sample(**(usual | fields))


def make_prompt(*token_ids: int, sample_id: str = "s") -> Prompt:
    """Return a prompt; without tokens, a prompt of three."""
    return Prompt(sample_id=sample_id, token_ids=token_ids or (5, 6, 7))


def policy(*token_ids: int, logprobs: Sequence[float] | None = None, version: int = 0) -> Segment:
    """Return a segment of the policy; every log-probability is -0.5 unless given."""
    values = (-0.5,) * len(token_ids) if logprobs is None else tuple(logprobs)
    return Segment(author=Author.POLICY, token_ids=token_ids, behaviour_logprobs=values, policy_version=version)


def tool(*token_ids: int) -> Segment:
    """Return a segment of a tool."""
    return Segment(author=Author.TOOL, token_ids=token_ids)


def hint(*token_ids: int) -> Segment:
    """Return a segment of a hint."""
    return Segment(author=Author.HINT, token_ids=token_ids)


def make_rollout(*segments: Segment, prompt: Sequence[int] = (5, 6, 7), **fields: Any) -> Rollout:
    """Return a finished rollout of the segments."""
    given: dict[str, Any] = {"group_id": "g", "member": 0, "stop_reason": StopReason.STOP, **fields}
    return Rollout(prompt=make_prompt(*prompt), segments=segments, **given)


def make_group(rollouts: Sequence[Rollout], *, group_id: str = "g", born: int = 0) -> Group:
    """Return a group of the rollouts."""
    return Group(id=group_id, sample_id="s", rollouts=tuple(rollouts), born=born)


def make_scored_group(rewards: Sequence[float | None], rollouts: Sequence[Rollout]) -> ScoredGroup:
    """Return a group with these rewards; above 0 means right, None unjudged."""
    verdicts = tuple(
        Verdict(correct=None if reward is None else reward > 0, reason="by hand", route="hand") for reward in rewards
    )
    return ScoredGroup(
        group=make_group(rollouts), verdicts=verdicts, rewards=tuple(Reward(total=reward) for reward in rewards)
    )


def make_request(*token_ids: int, key: str = "r", max_new_tokens: int = 8, **fields: Any) -> GenerationRequest:
    """Return a request without stop tokens."""
    given: dict[str, Any] = {"stop_token_ids": frozenset[int](), **fields}
    return GenerationRequest(key=key, token_ids=token_ids or (5, 6, 7), max_new_tokens=max_new_tokens, **given)


class PieceCodec:
    """A tokenizer of a few pieces of code and single ASCII characters, 320 ids in all.

    0 is the end of turn. The pieces split fences in every way; ids from 192 on are the pieces again, so that a random
    model of 320 tokens writes many tool calls.
    """

    eos_token_id = 0
    PIECES = ("```python\n", "```", "``", "`", "\n```", "x = 1", "x += 1", "print(x)", "\n", "```\n", "``\n")
    _FIRST_CHARACTER = 64
    _FIRST_COPY = 192

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the longest pieces, from the left."""
        del add_special_tokens
        token_ids: list[int] = []
        while text:
            piece = max((piece for piece in self.PIECES if text.startswith(piece)), key=len, default="")
            token_ids.append(1 + self.PIECES.index(piece) if piece else self._FIRST_CHARACTER + ord(text[0]))
            text = text[len(piece) or 1 :]
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text; the end of turn has none."""
        del skip_special_tokens
        return "".join(self._text(token_id) for token_id in token_ids)

    def get_vocab(self) -> dict[str, int]:
        """Return one name per id: the text and the id."""
        return {f"{self._text(token_id)} {token_id}": token_id for token_id in range(320)}

    def _text(self, token_id: int) -> str:
        if token_id == 0:
            return ""
        if token_id >= self._FIRST_COPY:
            return self.PIECES[(token_id - self._FIRST_COPY) % len(self.PIECES)]
        if token_id >= self._FIRST_CHARACTER:
            return chr(token_id - self._FIRST_CHARACTER)
        return self.PIECES[(token_id - 1) % len(self.PIECES)]


class CountingSession:
    """Its state is the list of codes it ran; each run prints how many those are. The code "boom" fails."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.is_closed = False

    def run(self, code: str) -> Execution:
        """Return the number of runs so far as stdout."""
        assert not self.is_closed, "a closed session was used"
        self.codes.append(code)
        if "boom" in code:
            return Execution(status=ExecutionStatus.ERROR, stdout="", error="NameError: name 'boom' is not defined")
        return Execution(status=ExecutionStatus.OK, stdout=f"{len(self.codes)}\n")

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class CountingInterpreter:
    """Opens counting sessions and keeps them for inspection."""

    def __init__(self) -> None:
        self.sessions: list[CountingSession] = []

    def open(self) -> Session:
        """Return a fresh session."""
        self.sessions.append(CountingSession())
        return self.sessions[-1]
