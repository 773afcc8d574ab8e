"""Generate with a plain transformers model: continuous batching over slots of a key-value cache. Knows no text.

The engine has a scratch copy of the model to itself. `load_adapter` has its adapted matrices rewritten from the pristine base
plus the adapter, so nothing drifts and the base is never written. A prompt that several requests share is read once
and its cache copied; a finished sequence gives its slot to the next request; a follow-up (a tool result) continues in the
slot of its sequence. What all prompts begin with is read once for all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from edge_rl.errors import EngineError
from edge_rl.rollout.engines.sampling import sample, uniform
from edge_rl.rollout.engines.slot_cache import SlotCache, grouped_attention
from edge_rl.types import Author, FollowUp, GenerationRequest, Segment

AttentionInterface.register("edge_rl_grouped", grouped_attention)

# Tokens of one prefill pass, padding included: bounds its memory.
PREFILL_TOKENS = 4096


@dataclass(slots=True)
class _Slot:
    """One sequence under way."""

    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list[int])
    """New tokens of this request; the last of them is not in the cache yet."""
    logprobs: list[float] = field(default_factory=list[float])
    is_waiting: bool = True
    """Its request has tokens that are not in the cache yet."""
    unread: int = 0
    """How many of them, for a follow-up; 0 for a prompt, which is read whole."""

    @property
    def length(self) -> int:
        """Tokens of the sequence so far."""
        return len(self.request.token_ids) + len(self.token_ids)

    @property
    def is_done(self) -> bool:
        """Whether the request is answered."""
        request, last = self.request, self.token_ids[-1]
        if last in request.stop_token_ids or len(self.token_ids) >= request.max_new_tokens:
            return True
        return last in request.watch_token_ids and request.stop_when is not None and request.stop_when(self.token_ids)


class HfEngine:
    """An `Engine` over a transformers model; see the module docstring."""

    def __init__(
        self,
        model: PreTrainedModel,
        load_weights: Callable[[Path | None], None],
        *,
        slots: int,
    ) -> None:
        """`model` is the scratch copy; `load_weights` makes it equal to the base with an adapter (None: the base alone)."""
        self._model = model.eval().requires_grad_(False)
        self._model.set_attn_implementation("edge_rl_grouped")
        self._decoder = cast(nn.Module, model.get_decoder())
        self._head = cast(nn.Module, model.get_output_embeddings())
        self._load_weights = load_weights
        self._policy_version = 0
        self._num_layers = model.config.get_text_config().num_hidden_layers
        self.slots = slots
        self.decode_passes = 0
        self.decode_slot_steps = 0
        self.decoded_tokens = 0

    def load_adapter(self, adapter_dir: Path | None, *, policy_version: int) -> None:
        """Sample from this adapter (None: the base) from now on and stamp segments with its version."""
        self._load_weights(adapter_dir)
        self._policy_version = policy_version

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest], follow_up: FollowUp) -> None:
        """Run all requests and their follow-ups; deliver each POLICY segment through `follow_up` once."""
        for request in requests:
            if not request.token_ids or request.max_new_tokens < 1:
                raise EngineError(f"request {request.key}: needs at least one token to continue and one to write")
        _Batch(self, deque(requests), follow_up).run()

    def segment(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> Segment:
        """Return a POLICY segment stamped with the current policy version."""
        return Segment(
            author=Author.POLICY,
            token_ids=tuple(token_ids),
            behaviour_logprobs=tuple(logprobs),
            policy_version=self._policy_version,
        )

    def new_cache(self, slots: int) -> SlotCache:
        """Return an empty cache for this model."""
        return SlotCache(num_layers=self._num_layers, slots=slots)

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self._model.device

    def next_logits(
        self, cache: SlotCache, rows: Sequence[int], new: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Return [B, V] logits after appending `new[i]` at position `starts[i]` of slot `rows[i]`."""
        device, width = self.device, max(len(tokens) for tokens in new)
        token_ids_BT = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in new], device=device)
        rows_B = torch.tensor(rows, device=device)
        starts_B1 = torch.tensor(starts, device=device).unsqueeze(1)
        positions_BT = starts_B1 + torch.arange(width, device=device)
        cache.select(rows_B, positions_BT, is_prefix=list(rows) == list(range(len(rows))))
        # What padding writes lies beyond the sequence: hidden by the mask, overwritten by the tokens that come.
        hidden_BTL = torch.arange(cache.length, device=device) > positions_BT.unsqueeze(2)
        mask_B1TL = torch.zeros(hidden_BTL.shape, dtype=self._model.dtype, device=device)
        mask_B1TL = mask_B1TL.masked_fill_(hidden_BTL, torch.finfo(self._model.dtype).min).unsqueeze(1)
        decoded = self._decoder(
            input_ids=token_ids_BT,
            position_ids=positions_BT,
            attention_mask=mask_B1TL,
            past_key_values=cache,
            use_cache=True,
        )
        hidden_BTH = cast(Tensor, decoded.last_hidden_state)
        last_B = torch.tensor([len(tokens) - 1 for tokens in new], device=device)
        return self._head(hidden_BTH[torch.arange(len(new), device=device), last_B])


def _common_prefix(prompts: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the tokens that all of several prompts begin with, short of the whole of any; () for a single prompt."""
    if len(prompts) < 2:
        return ()
    first, last = min(prompts), max(prompts)
    length = next(
        (index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return first[: min(length, min(map(len, prompts)) - 1)]


class _Batch:
    """The state of one `generate` call."""

    def __init__(self, engine: HfEngine, queue: deque[GenerationRequest], follow_up: FollowUp) -> None:
        self._engine = engine
        self._queue = queue
        self._follow_up = follow_up
        self._slots: list[_Slot | None] = [None] * min(engine.slots, max(len(queue), 1))
        self._cache = engine.new_cache(len(self._slots))
        # All at once: growing would leave the smaller blocks behind. A page takes no memory before it is written.
        self._cache.reserve(max((len(request.token_ids) + request.max_new_tokens for request in queue), default=0))
        self._prefix = _common_prefix({request.token_ids for request in queue})
        """Tokens that every request begins with, as a system message; read once and kept in every row."""
        if self._prefix:
            engine.next_logits(self._cache, [0], [self._prefix], [0])
            self._cache.copy_row(0, list(range(1, len(self._slots))), len(self._prefix))

    def run(self) -> None:
        while True:
            if self._is_time_to_fill():
                self._continue_waiting()
                self._admit()
                self._compact()
            rows = [row for row, slot in enumerate(self._slots) if slot is not None and not slot.is_waiting]
            if rows:
                self._decode(rows)
            elif not self._queue and not any(self._slots):
                break
        self._cache.release()

    def _is_time_to_fill(self) -> bool:
        """Reading prompts and tool results costs a pass over the weights, so it waits until several can share one."""
        decoding = sum(slot is not None and not slot.is_waiting for slot in self._slots)
        waiting = sum(slot is not None and slot.is_waiting for slot in self._slots)
        idle = len(self._slots) - decoding - waiting
        ready = waiting + (min(idle, len(self._queue)) if self._queue else idle)
        return decoding == 0 or ready >= max(4, decoding // 8)

    def _continue_waiting(self) -> None:
        """Read the tool results of the sequences that wait for it."""
        waiting = [(row, slot) for row, slot in enumerate(self._slots) if slot is not None and slot.is_waiting]
        if not waiting:
            return
        new = [slot.request.token_ids[-slot.unread :] for _, slot in waiting]
        starts = [len(slot.request.token_ids) - slot.unread for _, slot in waiting]
        rows = [row for row, _ in waiting]
        logits = self._engine.next_logits(self._cache, rows, new, starts)
        self._accept(rows, logits)

    def _admit(self) -> None:
        """Give free slots to queued requests; requests with the same tokens share one pass."""
        while self._queue and None in self._slots:
            by_prompt: dict[tuple[int, ...], list[int]] = {}
            width = 0
            while self._queue and None in self._slots:
                request = self._queue[0]
                width = max(width, len(request.token_ids) - len(self._prefix))
                if request.token_ids not in by_prompt and by_prompt and width * (len(by_prompt) + 1) > PREFILL_TOKENS:
                    break
                row = self._slots.index(None)
                self._slots[row] = _Slot(self._queue.popleft())
                by_prompt.setdefault(request.token_ids, []).append(row)
            first_rows = [rows[0] for rows in by_prompt.values()]
            start = len(self._prefix)
            new = [prompt[start:] for prompt in by_prompt]
            logits = self._engine.next_logits(self._cache, first_rows, new, [start] * len(new))
            for prompt, rows in by_prompt.items():
                if rows[1:]:
                    self._cache.copy_row(rows[0], rows[1:], len(prompt))
            owner = [index for index, rows in enumerate(by_prompt.values()) for _ in rows]
            self._accept([row for rows in by_prompt.values() for row in rows], logits[owner])

    def _decode(self, rows: list[int]) -> None:
        """Write one token in every row; rows that wait or are free are computed along and ignored, beyond the prefix."""
        width = rows[-1] + 1
        slots = self._slots[:width]
        last = [[slot.token_ids[-1]] if slot is not None and slot.token_ids else [0] for slot in slots]
        starts = [slot.length - 1 if slot is not None else len(self._prefix) for slot in slots]
        logits = self._engine.next_logits(self._cache, range(width), last, starts)
        self._engine.decode_passes += 1
        self._engine.decode_slot_steps += width
        self._accept(rows, logits if len(rows) == width else logits[rows])

    def _accept(self, rows: Sequence[int], logits: Tensor) -> None:
        """Draw the next token of these rows and hand over the sequences that end with it."""
        slots = [self._slots[row] for row in rows]
        live = [slot for slot in slots if slot is not None]
        draws = [uniform(slot.request.seed, slot.length) for slot in live]
        temperatures = [slot.request.temperature for slot in live]
        tokens, logprobs = sample(
            logits,
            torch.tensor(draws, dtype=torch.float64, device=logits.device),
            torch.tensor(temperatures, device=logits.device),
        )
        self._engine.decoded_tokens += len(live)
        token_ids = cast(list[int], tokens.tolist())
        values = cast(list[float], logprobs.tolist())
        for row, slot, token, logprob in zip(rows, live, token_ids, values, strict=True):
            slot.is_waiting = False
            slot.token_ids.append(token)
            slot.logprobs.append(logprob)
            if slot.is_done:
                self._deliver(row, slot)

    def _deliver(self, row: int, slot: _Slot) -> None:
        segment = self._engine.segment(slot.token_ids, slot.logprobs)
        following = self._follow_up(slot.request, segment)
        if following is None:
            self._slots[row] = None
            return
        written = (*slot.request.token_ids, *segment.token_ids)
        if following.token_ids[: len(written)] != written:
            raise EngineError(f"request {slot.request.key}: a follow-up must extend the sequence that was written")
        # The last token was sampled but not read yet.
        self._slots[row] = _Slot(following, unread=len(following.token_ids) - len(written) + 1)

    def _compact(self) -> None:
        """Close the gaps once nothing is queued, so that later passes are narrower."""
        if self._queue:
            return
        taken = sum(slot is not None for slot in self._slots)
        gaps = [row for row in range(taken) if self._slots[row] is None]
        movers = [(row, slot) for row, slot in enumerate(self._slots) if slot is not None and row >= taken]
        for gap, (row, slot) in zip(gaps, movers, strict=True):
            self._cache.copy_row(row, [gap], slot.length)
            self._slots[gap] = slot
        del self._slots[taken:]
