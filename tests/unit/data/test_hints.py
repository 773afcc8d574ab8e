from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_rl.data.hints import insert_hints, merge_segments, remove_hints
from edge_rl.errors import DataError
from edge_rl.types import Author, Hint, HintKind, TraceSegment

texts = st.text(alphabet="ab\n`é😀", min_size=0, max_size=6)


def policy(text: str) -> TraceSegment:
    return TraceSegment(author=Author.POLICY, text=text)


def tool(text: str) -> TraceSegment:
    return TraceSegment(author=Author.TOOL, text=text)


def hinted(text: str, kind: HintKind = HintKind.FREE) -> TraceSegment:
    return TraceSegment(author=Author.HINT, text=text, hint_kind=kind)


def hint(text: str, position: int, kind: HintKind = HintKind.FREE) -> Hint:
    return Hint(kind=kind, text=text, position=position)


@st.composite
def traces(draw: st.DrawFn) -> tuple[TraceSegment, ...]:
    authors = st.sampled_from([Author.POLICY, Author.TOOL])
    return tuple(draw(st.lists(st.builds(TraceSegment, author=authors, text=texts), max_size=6)))


@st.composite
def hinted_traces(draw: st.DrawFn) -> tuple[tuple[TraceSegment, ...], list[Hint]]:
    trace = draw(traces())
    allowed: list[int] = [0] if not merge_segments(trace) else []
    start = 0
    merged = merge_segments(trace)
    for segment in merged:
        end = start + len(segment.text)
        if segment.author is Author.POLICY:
            allowed.extend(range(start, end))
        start = end
    allowed.append(start)
    kinds, words = st.sampled_from(HintKind), texts.filter(bool)
    hints = st.builds(Hint, kind=kinds, text=words, position=st.sampled_from(allowed))
    return trace, draw(st.lists(hints, max_size=5))


@given(hinted_traces())
def test_remove_hints_undoes_insert_hints(case: tuple[tuple[TraceSegment, ...], list[Hint]]) -> None:
    trace, hints = case
    expected = sorted(hints, key=lambda item: item.position or 0)  # stable: ties keep their order
    assert remove_hints(insert_hints(trace, hints)) == (merge_segments(trace), tuple(expected))


@given(
    st.lists(
        st.one_of(texts.map(policy), texts.map(tool), st.builds(hinted, texts.filter(bool), st.sampled_from(HintKind))),
        max_size=8,
    )
)
def test_insert_hints_undoes_remove_hints(segments: list[TraceSegment]) -> None:
    canonical = merge_segments(segments)
    try:
        trace, hints = remove_hints(segments)
    except DataError:
        pairs = pairwise(canonical)
        assert any(a.author is Author.HINT and b.author is Author.TOOL for a, b in pairs)
        return
    assert insert_hints(trace, hints) == canonical


@given(hinted_traces())
def test_insert_hints_keeps_every_character(case: tuple[tuple[TraceSegment, ...], list[Hint]]) -> None:
    trace, hints = case
    placed = insert_hints(trace, hints)
    plain = "".join(segment.text for segment in placed if segment.author is not Author.HINT)
    assert plain == "".join(segment.text for segment in trace)
    assert sum(len(segment.text) for segment in placed) == len(plain) + sum(len(item.text) for item in hints)


def test_insert_hints_cuts_a_policy_segment_at_the_offset() -> None:
    trace = (policy("12 times 34 is"), tool("\n408\n"), policy("So 408."))
    hints = (hint(" by code", 14 + 5), hint("<A>", 3), hint("<B>", 3))
    with pytest.raises(DataError, match="offset 14 would split"):
        insert_hints(trace, [hint("x", 14)])
    assert insert_hints(trace, hints) == (
        policy("12 "),
        hinted("<A>"),
        hinted("<B>"),
        policy("times 34 is"),
        tool("\n408\n"),
        hinted(" by code"),
        policy("So 408."),
    )


@pytest.mark.parametrize("position", [2, 3, 5])
def test_insert_hints_rejects_a_place_in_a_tool_result(position: int) -> None:
    with pytest.raises(DataError, match=f"offset {position} would split a tool result .* spans 2 to 6"):
        insert_hints((policy("ab"), tool("cdef"), policy("g")), [hint("x", position)])


def test_insert_hints_rejects_what_has_no_place() -> None:
    with pytest.raises(DataError, match="trace has 2 characters"):
        insert_hints((policy("ab"),), [hint("x", 3)])
    with pytest.raises(DataError, match="ladder tier"):
        insert_hints((policy("ab"),), [Hint(kind=HintKind.FREE, text="x", tier=1)])
    with pytest.raises(DataError, match="no text"):
        insert_hints((policy("ab"),), [hint("", 1)])
    with pytest.raises(DataError, match="already holds"):
        insert_hints((policy("ab"), hinted("x")), [])


def test_remove_hints_rejects_a_hint_before_a_tool_result() -> None:
    with pytest.raises(DataError, match="before offset 2 parts a tool result"):
        remove_hints((policy("ab"), hinted("x"), tool("cd")))
    with pytest.raises(DataError, match="no hint_kind"):
        remove_hints((TraceSegment(author=Author.HINT, text="x"),))


def test_merge_segments_joins_neighbours_of_one_author() -> None:
    assert merge_segments((policy("a"), policy(""), policy("b"), tool("c"), tool("d"))) == (policy("ab"), tool("cd"))
