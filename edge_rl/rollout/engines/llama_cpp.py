"""An engine over a llama.cpp server: measures an exported GGUF with the same collector, tools and verifiers as the model.

Knows the server's /completion call; who starts the server, and from which file, is not its business. The server batches
what its slots hold, so each slot has a worker here. Sampling is the full distribution at the request's temperature. The
draws are seeded, but a sum rounds otherwise with other neighbours in the batch, so a long completion may differ the next
time.

Two facts about the server shape this file: streamed answers lose the tokens of a character that spans tokens, so answers
are not streamed; and there are no log-probabilities for the parts of such a character nor for a stop text. Where the server
reports none the behaviour logprob is NaN: good for measuring, and loud if anyone trained on it.
"""

import json
import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from edge_rl.errors import EngineError
from edge_rl.types import Author, FollowUp, GenerationRequest, Segment, derive_seed


class CompletionServer(Protocol):
    """What the engine needs of a server."""

    @property
    def slots(self) -> int:
        """Sequences that it decodes at once."""
        ...

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; may be called from many threads."""
        ...


class LlamaCppEngine:
    """Continues token sequences in llama.cpp."""

    def __init__(self, server: CompletionServer, *, logprobs: bool = True) -> None:
        """`logprobs` False: every behaviour logprob is NaN, and the server need not sort the vocabulary for each token."""
        self._server = server
        self._logprobs = logprobs
        self._policy_version = 0
        self._texts: dict[int, str] = {}

    def load_adapter(self, adapter_dir: Path | None, *, policy_version: int) -> None:
        """Stamp another version; a GGUF has its adapter merged.

        Raises: EngineError for an adapter.
        """
        if adapter_dir is not None:
            raise EngineError(
                f"a GGUF has its adapter merged; {adapter_dir} cannot be loaded on top, export it instead"
            )
        self._policy_version = policy_version

    def generate(self, requests: Sequence[GenerationRequest], follow_up: FollowUp) -> None:
        """Run all requests and their follow-ups; the follow-ups of a rollout stay in its slot and find its cache there.

        Raises: EngineError where the server fails; what else `follow_up` raises passes through.
        """
        queue = deque(requests)
        guard = threading.Lock()
        failed = threading.Event()

        def work(slot: int) -> None:
            following: GenerationRequest | None = None
            try:
                while not failed.is_set():
                    if following is None:
                        try:
                            following = queue.popleft()
                        except IndexError:
                            return
                    segment = self._segment(following, slot)
                    with guard:
                        following = follow_up(following, segment)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(max_workers=self._server.slots) as pool:
            workers = [pool.submit(work, slot) for slot in range(min(self._server.slots, len(requests)))]
        for worker in workers:
            worker.result()

    def _segment(self, request: GenerationRequest, slot: int) -> Segment:
        written: list[int] = []
        logprobs: list[float] = []
        stop_texts = self._stop_texts(request)
        while len(written) < request.max_new_tokens:
            tokens, values = self._complete(request, written, slot, stop_texts)
            written += tokens
            logprobs += values
            if written[-1] in request.stop_token_ids:
                break
            is_watched = written[-1] in request.watch_token_ids and request.stop_when is not None
            if is_watched and request.stop_when is not None and request.stop_when(written):
                break
        return Segment(
            author=Author.POLICY,
            token_ids=tuple(written),
            behaviour_logprobs=tuple(logprobs),
            policy_version=self._policy_version,
        )

    def _complete(
        self, request: GenerationRequest, written: Sequence[int], slot: int, stop_texts: Sequence[str]
    ) -> tuple[list[int], list[float]]:
        """Tokens up to a stop text, an end token or the limit, and their logprobs."""
        prompt = [*request.token_ids, *written]
        body = self._body(prompt, slot) | {
            "n_predict": request.max_new_tokens - len(written),
            "temperature": request.temperature,
            "seed": derive_seed(request.seed, len(prompt)) % 2**32,
            "stop": list(stop_texts),
            "post_sampling_probs": request.temperature not in (0.0, 1.0),
        }
        answer = self._server.post("/completion", body)
        tokens: list[int] = answer["tokens"]
        for place, token in enumerate(tokens):
            if token in request.stop_token_ids:
                tokens = tokens[: place + 1]
                break
        if not tokens:
            raise EngineError(f"llama.cpp wrote no token for {request.key}: {json.dumps(answer)[:200]}")
        values = [_logprob(entry) for entry in _aligned(tokens, answer.get("completion_probabilities", []))]
        return tokens, values + [math.nan] * (len(tokens) - len(values))

    def _body(self, prompt: Sequence[int], slot: int) -> dict[str, Any]:
        return {
            "prompt": list(prompt),
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
            "n_probs": 1 if self._logprobs else 0,
            "samplers": ["temperature"],  # no top-k, top-p, min-p or penalty
        }

    def _stop_texts(self, request: GenerationRequest) -> list[str]:
        """The shortest texts of which at least one occurs in every watched token."""
        if request.stop_when is None:
            return []
        texts: set[str] = set()
        for token in request.watch_token_ids:
            if token not in self._texts:
                content = self._server.post("/detokenize", {"tokens": [token]})["content"]
                self._texts[token] = content.strip("\ufffd")
            if not self._texts[token]:
                raise EngineError(f"watched token {token} is no text of its own; llama.cpp cannot stop at it")
            texts.add(self._texts[token])
        return sorted(text for text in texts if not any(other != text and other in text for other in texts))


def _aligned(tokens: Sequence[int], entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of the first tokens. A token inside a character never has one, so ids find the first gap for sure."""
    aligned: list[dict[str, Any]] = []
    for token, entry in zip(tokens, entries, strict=False):
        if entry["id"] != token:
            break
        aligned.append(entry)
    return aligned


def _logprob(entry: dict[str, Any]) -> float:
    if "logprob" in entry:
        return float(entry["logprob"])
    return math.log(max(float(entry["prob"]), 1e-38))
