"""An engine that replays given tokens: the public fake for tests, demos and dry runs. Knows no model."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_rl.errors import EngineError
from edge_rl.types import Author, FollowUp, GenerationRequest, Segment

Script = Callable[[GenerationRequest], Sequence[int]]


class ScriptedEngine:
    """Replays a list of replies in the order of the requests, or asks a function for each reply.

    A reply is cut where a real engine would stop: at a stop token, at `stop_when`, at `max_new_tokens`.
    Every token has the log-probability `logprob`.
    """

    def __init__(self, script: Sequence[Sequence[int]] | Script, *, logprob: float = -0.5) -> None:
        """`script`: replies in order, or a function from a request to its reply."""
        self._script = script if callable(script) else None
        self._replies = deque([] if callable(script) else script)
        self._logprob = logprob
        self._policy_version = 0

    def generate(self, requests: Sequence[GenerationRequest], follow_up: FollowUp) -> None:
        """Answer every request and its follow-ups.

        Raises: EngineError when the script has no reply left.
        """
        queue = deque(requests)
        while queue:
            request = queue.popleft()
            following = follow_up(request, self._segment(self._cut(request, self._reply(request))))
            if following is not None:
                queue.append(following)

    def load_adapter(self, adapter_dir: Path | None, *, policy_version: int) -> None:
        """Change only the version that is stamped."""
        self._policy_version = policy_version

    def _reply(self, request: GenerationRequest) -> Sequence[int]:
        if self._script is not None:
            return self._script(request)
        if not self._replies:
            raise EngineError(f"the script has no reply left for request {request.key}")
        return self._replies.popleft()

    def _cut(self, request: GenerationRequest, reply: Sequence[int]) -> list[int]:
        written: list[int] = []
        for token in reply[: request.max_new_tokens]:
            written.append(token)
            is_watched = token in request.watch_token_ids and request.stop_when is not None
            if token in request.stop_token_ids or (is_watched and request.stop_when and request.stop_when(written)):
                break
        return written

    def _segment(self, token_ids: Sequence[int]) -> Segment:
        return Segment(
            author=Author.POLICY,
            token_ids=tuple(token_ids),
            behaviour_logprobs=(self._logprob,) * len(token_ids),
            policy_version=self._policy_version,
        )
