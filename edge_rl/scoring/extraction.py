r"""What a completion commits to at its end. Knows the marks of an answer, no kind of answer and no gold.

Order: the last complete box (\boxed{}, \fbox{}, \boxed 5), else `#### x`, else <answer>x</answer>, else the closing
statement. Nothing is committed where a reasoning block is open, a box or tag is cut off, or the value was withdrawn.
Values that stand side by side ("\boxed{3} or \boxed{4}") are one offer of several.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from edge_rl.scoring.statements import Statement, closing_statement, is_negated, is_withdrawn

END_OF_TURN = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)
REASONING_NAMES = "think|thinking|thought|reasoning|scratchpad"
REASONING_OPEN = re.compile(rf"<(?:{REASONING_NAMES})>|\[THINK\]|<\|begin_of_thought\|>", re.IGNORECASE)
REASONING_CLOSE = re.compile(rf"</(?:{REASONING_NAMES})>|\[/THINK\]|<\|end_of_thought\|>", re.IGNORECASE)
CODE_LANGUAGES = re.compile(r"```[ \t]*(?:python|py|output|tool_code|tool_output)\b", re.IGNORECASE)
BRACE_OR_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\(?:boxed|fbox)(?![A-Za-z{])\s*|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(-?[A-Za-z0-9.,/]*[A-Za-z0-9]%?)")
MARKER = re.compile(r"^[ \t>*]*####(?!#)[ \t]*(.*)$", re.MULTILINE)
HEADING = re.compile(
    r"^(?:step|part|case)\b|^(?:solution|final answer|answer|explanation|reasoning|conclusion)\b[^0-9]*:?$",
    re.IGNORECASE,
)
ANSWER_LABEL = re.compile(r"^(?:the\s+)?(?:final\s+)?answer\s*(?:is|:)\s*", re.IGNORECASE)
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)

CORRECTION = re.compile(
    r"\b(?:wait|no,|nope|hmm+|oops|actually|instead|correct(?:ed|ion|ing)?|mistake\w*|wrong|incorrect\w*|recheck\w*|recount\w*|"
    r"revers\w+|recomput\w+|re-?examin\w+|reconsider\w*|redo|revis\w+|should (?:be|have)|forgot|overlooked|missed|"
    r"first (?:attempt|try|thought|guess)|second attempt|however|scratch that|sorry)\b|等等|不对|更正|错",
    re.IGNORECASE,
)
FINAL = re.compile(r"\bfinal\b|最终", re.IGNORECASE)
CLAIM = re.compile(r"\b(?:answer|result|option|choice)\s*(?:is|are|:|=|\*\*)|答案", re.IGNORECASE)
HEDGE = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|alternatively|either|also|another|could|might|otherwise|candidate\w*)\b|或",
    re.IGNORECASE,
)
EARLY_ATTEMPT = re.compile(r"\b(?:first (?:attempt|try|thought|guess|i)|initially|at first|my first)\b", re.IGNORECASE)
WRONG_LEAD = re.compile(r"\b(?:wrong|incorrect|tempting|mistaken|trap|false)\b[^.\n]*$", re.IGNORECASE)
NUM_PROSE_WORDS = 4
LEAD_CHARS = 60
MAX_BOXES = 200
MAX_TEXT = 100_000
"""Only so many characters at the end are read."""


@dataclass(frozen=True, slots=True)
class Commitment:
    """What is offered as the answer: nothing, one value, or several side by side."""

    values: tuple[str, ...]
    """Raw texts in order; empty where nothing was committed or only a statement in prose was."""
    route: str
    """box, marker, tag, statement or nothing."""
    reason: str = ""
    statement: Statement | None = None
    """The closing statement, on route statement."""


@dataclass(frozen=True, slots=True)
class Span:
    """A marked value and where it stands."""

    start: int
    end: int
    content: str


def commit(completion: str, *, many: bool = False) -> Commitment:
    """Return what a completion commits to; with `many` (sets) values are joined unless the earlier ones were withdrawn."""
    text = visible_answer(completion)
    if text is None:
        return Commitment((), "nothing", "the reasoning block is still open")
    boxes, is_cut_off = find_boxes(text)
    if is_cut_off:
        return Commitment((), "nothing", "the box is cut off")
    markers = [] if boxes else _markers(text)
    tags = [] if boxes or markers else [Span(m.start(), m.end(), m.group(1)) for m in TAG.finditer(text)]
    for spans, route in ((boxes, "box"), (markers, "marker"), (tags, "tag")):
        if spans:
            return _from_spans(text, spans, route, many)
    lower = text.lower()
    if lower.rfind("<answer>") > lower.rfind("</answer>"):
        return Commitment((), "nothing", "the answer tag is cut off")
    return _from_statement(text)


def visible_answer(completion: str) -> str | None:
    """Return what follows the reasoning, without code blocks, end-of-turn tokens and invisible characters.

    None where a reasoning block was opened and not closed. A closing tag alone means that the prompt had opened it.
    """
    text = completion
    if not text.isascii():
        text = "".join(character for character in text if unicodedata.category(character) != "Cf").replace("\xa0", " ")
    text = text.replace("\r\n", "\n")
    last_close, last_open = -1, -1
    for match in REASONING_CLOSE.finditer(text):
        last_close = match.end()
    for match in REASONING_OPEN.finditer(text):
        last_open = match.start()
    if last_open > last_close:
        return None
    text = text[max(last_close, 0) :]
    return _without_code(_without_end_of_turn(text)[-MAX_TEXT:])


def find_boxes(text: str) -> tuple[list[Span], bool]:
    """Return the outermost complete boxes in order, and whether the text ends inside a box. One pass, linear time."""
    boxes: list[Span] = []
    stack: list[tuple[bool, int, int]] = []
    for match in BRACE_OR_BOX.finditer(text):
        token = match.group()
        if token == "}":
            if stack:
                is_box, start, content = stack.pop()
                if is_box:
                    boxes = _without_inner(boxes, start)
                    boxes.append(Span(start, match.end(), text[content : match.start()]))
        elif token == "{":
            stack.append((False, match.start(), match.end()))
        elif token.endswith("{") and len(token) > 2:
            stack.append((True, match.start(), match.end()))
        elif bare := BARE_BOX.match(text, match.start()):
            boxes.append(Span(bare.start(), bare.end(), bare.group(1)))
    last_end = boxes[-1].end if boxes else -1
    is_cut_off = any(is_box and start > last_end for is_box, start, _ in stack)
    return boxes[-MAX_BOXES:], is_cut_off


def _without_inner(boxes: list[Span], start: int) -> list[Span]:
    while boxes and boxes[-1].start > start:
        boxes.pop()
    return boxes


def _without_end_of_turn(text: str) -> str:
    while True:
        text = text.rstrip()
        token = next((token for token in END_OF_TURN if text.endswith(token)), None)
        if token is None:
            return text
        text = text.removesuffix(token)


def _without_code(text: str) -> str:
    if "```" not in text:
        return text
    parts: list[str] = []
    place = 0
    while True:
        match = CODE_LANGUAGES.search(text, place)
        if match is None:
            parts.append(text[place:])
            return "".join(parts)
        parts.append(text[place : match.start()])
        end = text.find("```", match.end())
        if end < 0:
            return "".join(parts)
        parts.append("\n")
        place = end + 3


def _markers(text: str) -> list[Span]:
    spans: list[Span] = []
    for match in MARKER.finditer(text):
        content = ANSWER_LABEL.sub("", match.group(1).strip(" *\t"))
        if content and not HEADING.match(content):
            spans.append(Span(match.start(), match.end(), content))
    return spans


def _from_spans(text: str, spans: Sequence[Span], route: str, many: bool) -> Commitment:
    standing = [span for span in spans if not _is_denied(text, span)]
    if not standing:
        return Commitment((), "nothing", "the marked value is denied")
    last = standing[-1]
    rest = text[last.end :]
    if is_withdrawn(rest):
        later = _from_statement(rest)
        is_new = later.statement is not None and (
            later.statement.is_claim or not is_withdrawn(later.statement.sentence)
        )
        return later if is_new else Commitment((), "nothing", "the last value was withdrawn")
    offered = [last]
    following = last
    for span in reversed(standing[:-1]):
        if _key(span) != _key(following) and not _is_same_offer(text, span, following, many):
            break
        offered.append(span)
        following = span
    values = tuple(dict.fromkeys(span.content.strip() for span in reversed(offered)))
    return Commitment(values, route)


def _key(span: Span) -> str:
    return "".join(span.content.split())


def _is_denied(text: str, span: Span) -> bool:
    lead = text[max(0, span.start - LEAD_CHARS) : span.start]
    return is_negated(lead) or (WRONG_LEAD.search(lead) is not None and "not wrong" not in lead)


def _is_same_offer(text: str, span: Span, following: Span, many: bool) -> bool:
    """Return whether two different values stand side by side as one offer: neither an earlier attempt nor a step."""
    gap = text[span.end : following.start]
    lead = text[max(0, span.start - LEAD_CHARS) : span.start]
    if CORRECTION.search(gap) or EARLY_ATTEMPT.search(lead):
        return False
    if many:
        return not FINAL.search(gap)
    if HEDGE.search(gap):
        return True
    if FINAL.search(gap) and not FINAL.search(lead):
        return False
    return bool(CLAIM.search(lead)) or len(re.findall(r"[^\W\d_]+", gap)) < NUM_PROSE_WORDS


def _from_statement(text: str) -> Commitment:
    statement = closing_statement(text)
    if statement is None:
        return Commitment((), "nothing", "no answer at the end")
    return Commitment((), "statement", statement=statement)
