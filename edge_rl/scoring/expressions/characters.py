"""Characters to a small alphabet: full-width forms, invisible marks, typographic minus signs, unicode mathematics."""

import re
import unicodedata

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()")
SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎]+")
VULGAR_FRACTION = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")

MATH_SIGNS = {
    "√": r"\sqrt ",
    "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≦": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≧": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "×": r"\times ",
    "⋅": r"\cdot ",
    "·": r"\cdot ",
    "∙": r"\cdot ",
    "•": r"\cdot ",
    "÷": r"\div ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∖": r"\setminus ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "⌀": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}",
    "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}",
    "°": r"^\circ ",
    "º": r"^\circ ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "∣": "|",
    "∨": r"\lor ",
    "∧": r"\land ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
}
GREEK = dict(
    zip(
        "αβγδεζηθικλμνξρσςτυφχψω",
        (
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma sigma tau upsilon phi chi "
            "psi omega"
        ).split(),
        strict=True,
    )
)
DASHES = str.maketrans(
    dict.fromkeys("−‐‑‒–—―﹣－⁃", "-") | {"⁄": "/", "∕": "/", "∗": "*", "′": "'", "’": "'", "‘": "'"}
)
THIN_SPACES = str.maketrans({"\u2009": r"\,", "\u202f": r"\,", "\u2008": r"\,", "\u200a": r"\,"})


def clean_text(text: str) -> str:
    """Return text with composed accents, ASCII digits and dashes, ordinary spaces and no invisible character."""
    if text.isascii():
        return text.replace("\r\n", "\n").replace("\r", "\n")
    visible = "".join(character for character in text if unicodedata.category(character) != "Cf")
    composed = unicodedata.normalize("NFKC", visible).translate(DASHES)
    return _ascii_digits(composed).replace("\r\n", "\n").replace("\r", "\n").replace("“", '"').replace("”", '"')


def clean_math(text: str) -> str:
    """Return mathematical text with unicode signs as LaTeX commands, so that 2³ is a power and ½ a fraction."""
    if text.isascii():
        return clean_text(text)
    text = text.translate(THIN_SPACES)
    text = SUPERSCRIPT_RUN.sub(lambda match: "^{" + match.group().translate(SUPERSCRIPTS) + "}", text)
    text = SUBSCRIPT_RUN.sub(lambda match: "_{" + match.group().translate(SUBSCRIPTS) + "}", text)
    text = VULGAR_FRACTION.sub(_fraction, text)
    text = "".join(MATH_SIGNS.get(character, character) for character in text)
    text = "".join(f"\\{GREEK[character]} " if character in GREEK else character for character in text)
    return clean_text(text)


def _fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _ascii_digits(text: str) -> str:
    return "".join(
        str(unicodedata.decimal(character)) if not character.isascii() and character.isdecimal() else character
        for character in text
    )
