r"""LaTeX or plain mathematics to tokens. Knows no grammar.

Layout commands vanish, \text{...} becomes one token, digits become exact numbers with their thousands separators removed.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from edge_rl.scoring.expressions.characters import clean_math
from edge_rl.scoring.expressions.nodes import ExpressionError

MAX_LENGTH = 2_000
MAX_DIGITS = 20_000
CHUNK_DIGITS = 4_000
MAX_EXPONENT = 5_000

LAYOUT = frozenset(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle limits nolimits quad "
    "qquad enspace thinspace medspace thickspace nonumber noindent hspace vspace hfill allowbreak tiny small large "
    "Large".split()
)
TEXT_COMMANDS = frozenset(
    "text mbox textbf textit textrm textsf texttt textnormal emph mathrm mathbf mathit mathsf mathtt mathcal bm "
    "boldsymbol operatorname hbox rm bf it".split()
)
SPACING = re.compile(r"\\[,;:! ]|~|\\\s")
NUMBER = re.compile(
    r"(?P<whole>\d{1,3}(?:(?P<separator>,|\{,\}|\\,|,\\!|,\\! | )\d{3})(?:(?P=separator)\d{3})*(?![\d])|\d+)?"
    r"(?P<fraction>\.\d+|\.(?!\d))?(?P<exponent>[eE][-+]?\d{1,5}(?![\d.A-Za-z]))?"
)
REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))")
COMMAND = re.compile(r"\\([A-Za-z]+)\*?")
WORD = re.compile(r"[A-Za-z]+")
BRACED_NAME = re.compile(r"\s*\{([A-Za-z]+)\}")
OPERATORS = ("**", "<=", ">=", "!=", "==", "=>", "->")
SINGLES = "+-*/^_(){}[]|,;:=<>!%&'"


@dataclass(frozen=True, slots=True)
class Token:
    r"""One token: kind is number, command (name without \), word, text, mark or row (\\)."""

    kind: str
    text: str
    value: Fraction = Fraction(0)
    spaced: bool = False
    """Whether white space stood before it."""
    is_integer: bool = False
    """For a number: plain digits, so that it may start a mixed number."""


def tokenize(text: str, *, thousands: bool = True) -> list[Token]:
    """Return the tokens of mathematical text.

    With `thousands`, 1,234 is one number; without, only LaTeX separators join digits and a comma always separates values.
    Raises: ExpressionError for a character that is no mathematics, or a text beyond the bounds.
    """
    if len(text) > MAX_LENGTH and sum(not character.isdigit() for character in text) > MAX_LENGTH:
        raise ExpressionError("too long to be an answer")
    text = _strip_layout(clean_math(text))
    tokens: list[Token] = []
    place, spaced = 0, False
    while place < len(text):
        if text[place].isspace():
            place, spaced = place + 1, True
            continue
        token, place = _next_token(text, place, thousands)
        if token is not None:
            tokens.append(
                Token(token.kind, token.text, token.value, spaced=spaced or token.spaced, is_integer=token.is_integer)
            )
            spaced = False
        else:
            spaced = True
    return tokens


def whole_number(digits: str) -> int:
    """Return the integer of a run of digits of any allowed length (int() refuses more than 4,300)."""
    if len(digits) > MAX_DIGITS:
        raise ExpressionError("a number of too many digits")
    value = 0
    for start in range(0, len(digits), CHUNK_DIGITS):
        chunk = digits[start : start + CHUNK_DIGITS]
        value = value * 10 ** len(chunk) + int(chunk)
    return value


def _strip_layout(text: str) -> str:
    for opening, closing in (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)")):
        stripped = text.strip()
        if stripped.startswith(opening) and stripped.endswith(closing) and len(stripped) > len(opening) + len(closing):
            text = stripped[len(opening) : -len(closing)]
    return text.replace("\\$", " ").replace("$", " ").replace("\\%", "%").replace("\\#", "#").replace("\\&", "&")


def _next_token(text: str, place: int, thousands: bool) -> tuple[Token | None, int]:
    character = text[place]
    if character.isdigit() or (character == "." and place + 1 < len(text) and text[place + 1].isdigit()):
        return _number(text, place, thousands)
    if character == "\\":
        return _command(text, place)
    if match := WORD.match(text, place):
        return Token("word", match.group()), match.end()
    for operator in OPERATORS:
        if text.startswith(operator, place):
            return Token("mark", operator), place + len(operator)
    if character in SINGLES:
        return Token("mark", character), place + 1
    if character == "~":
        return None, place + 1
    if character == "." and not text[place + 1 :].strip(" .}"):
        return None, place + 1
    if character == "€" or character == "£" or character == "¥":
        return None, place + 1
    raise ExpressionError(f"{character!r} is no mathematics")


def _command(text: str, place: int) -> tuple[Token | None, int]:
    if match := COMMAND.match(text, place):
        name = match.group(1)
        if name in LAYOUT:
            return None, match.end()
        if name in TEXT_COMMANDS:
            return _text_command(text, match.end())
        if name in ("begin", "end", "mathbb", "Bbb"):
            if braced := BRACED_NAME.match(text, match.end()):
                return Token(name, braced.group(1)), braced.end()
            raise ExpressionError(f"\\{name} without a name")
        return Token("command", name), match.end()
    if text.startswith("\\\\", place):
        return Token("row", "\\\\"), place + 2
    if text.startswith(("\\{", "\\}", "\\|"), place):
        return Token("mark", text[place : place + 2]), place + 2
    if SPACING.match(text, place):
        return None, place + 2
    raise ExpressionError("a stray backslash")


def _text_command(text: str, place: int) -> tuple[Token, int]:
    while place < len(text) and text[place].isspace():
        place += 1
    if place == len(text) or text[place] != "{":
        return Token("text", ""), place
    depth, start = 0, place + 1
    for end in range(place, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return Token("text", text[start:end]), end + 1
    raise ExpressionError("an open \\text")


def _number(text: str, place: int, thousands: bool) -> tuple[Token, int]:
    if match := REPEATING.match(text, place):
        whole, fixed, block = match.group(1) or "0", match.group(2), match.group(3) or match.group(4)
        tail = Fraction(whole_number(block), 10 ** len(fixed) * (10 ** len(block) - 1))
        head = Fraction(whole_number(whole + fixed), 10 ** len(fixed))
        return Token("number", "", head + tail), match.end()
    match = NUMBER.match(text, place)
    assert match is not None
    whole, separator = match.group("whole") or "", match.group("separator")
    if (separator == "," and not thousands) or (separator == " " and (match.group("fraction") or not thousands)):
        match = re.compile(
            r"(?P<whole>\d+)(?P<fraction>\.\d+|\.(?!\d))?(?P<exponent>[eE][-+]?\d{1,5}(?![\d.A-Za-z]))?"
        ).match(text, place)
        assert match is not None
        whole = match.group("whole")
    digits = re.sub(r"\D", "", whole)
    decimals = (match.group("fraction") or "").lstrip(".")
    exponent = int((match.group("exponent") or "e0")[1:])
    if abs(exponent) > MAX_EXPONENT:
        raise ExpressionError("an exponent that is too large")
    value = Fraction(whole_number((digits + decimals) or "0"), 10 ** len(decimals)) * Fraction(10) ** exponent
    plain = not decimals and exponent == 0
    return Token("number", digits if plain else "", value, is_integer=plain), match.end()
