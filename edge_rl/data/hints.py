"""Hints in and out of a trace, at exact character offsets. Knows no tokens and no model.

`insert_hints` and `remove_hints` are inverse to each other on canonical input: in a canonical trace no segment is
empty and no two neighbours share an author; canonical hints stand in order of position. Hints at the same offset keep
their order and stay separate segments. CoRT (arXiv:2506.09820) calls this hint engineering.
"""

from collections import deque
from collections.abc import Sequence

from edge_rl.errors import DataError
from edge_rl.types import Author, Hint, TraceSegment


def merge_segments(segments: Sequence[TraceSegment]) -> tuple[TraceSegment, ...]:
    """Return the canonical form: empty segments dropped, neighbours of one author joined; hints are never joined."""
    merged: list[TraceSegment] = []
    for segment in segments:
        if not segment.text:
            continue
        if merged and segment.author is merged[-1].author and segment.author is not Author.HINT:
            merged[-1] = TraceSegment(author=segment.author, text=merged[-1].text + segment.text)
        else:
            merged.append(segment)
    return tuple(merged)


def insert_hints(trace: Sequence[TraceSegment], hints: Sequence[Hint]) -> tuple[TraceSegment, ...]:
    """Return the trace with each hint as a HINT segment at its character offset.

    A hint stands inside or beside policy text. It may neither lie inside a tool result nor part it from its call.

    Raises: DataError for a hint without position or text, beyond the trace, or in a tool result; for a trace that
    already holds hints.
    """
    if any(segment.author is Author.HINT for segment in trace):
        raise DataError("the trace already holds hint segments; take them out with remove_hints first")
    waiting = deque(_order_hints(hints, length=sum(len(segment.text) for segment in trace)))
    placed: list[TraceSegment] = []
    start = 0
    for segment in merge_segments(trace):
        end, cut = start + len(segment.text), start
        while waiting and waiting[0][0] < end:
            position, hint = waiting.popleft()
            if segment.author is Author.TOOL:
                raise DataError(
                    f"hint at offset {position} would split a tool result or part it from its call "
                    f"(the result spans {start} to {end}); place it at {end} or inside the policy's text"
                )
            placed.append(TraceSegment(author=segment.author, text=segment.text[cut - start : position - start]))
            placed.append(_as_segment(hint))
            cut = position
        placed.append(TraceSegment(author=segment.author, text=segment.text[cut - start :]))
        start = end
    placed.extend(_as_segment(hint) for _, hint in waiting)
    return tuple(segment for segment in placed if segment.text)


def remove_hints(segments: Sequence[TraceSegment]) -> tuple[tuple[TraceSegment, ...], tuple[Hint, ...]]:
    """Return the canonical hint-free trace and its hints, each at its character offset in that trace.

    Raises: DataError for a hint right before a tool result or a hint segment without a kind.
    """
    hints: list[Hint] = []
    kept: list[TraceSegment] = []
    offset = 0
    is_after_hint = False
    for segment in segments:
        if not segment.text:
            continue
        if segment.author is not Author.HINT:
            if is_after_hint and segment.author is Author.TOOL:
                raise DataError(f"the hint before offset {offset} parts a tool result from its call; move it")
            kept.append(segment)
            offset += len(segment.text)
        elif segment.hint_kind is None:
            raise DataError(f"hint segment {segment.text[:40]!r} at offset {offset} has no hint_kind")
        else:
            hints.append(Hint(kind=segment.hint_kind, text=segment.text, position=offset))
        is_after_hint = segment.author is Author.HINT
    return merge_segments(kept), tuple(hints)


def _order_hints(hints: Sequence[Hint], *, length: int) -> list[tuple[int, Hint]]:
    """Return (position, hint) in order of position; equal positions keep their order."""
    ordered: list[tuple[int, Hint]] = []
    for hint in hints:
        if hint.position is None:
            raise DataError(f"hint {hint.text[:40]!r} has no position in the trace: it is a ladder tier")
        if not hint.text:
            raise DataError(f"hint at offset {hint.position} has no text")
        if hint.position > length:
            raise DataError(f"hint at offset {hint.position}, but the trace has {length} characters")
        ordered.append((hint.position, hint))
    return sorted(ordered, key=lambda item: item[0])


def _as_segment(hint: Hint) -> TraceSegment:
    return TraceSegment(author=Author.HINT, text=hint.text, hint_kind=hint.kind)
