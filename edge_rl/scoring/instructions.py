"""Instructions whose following can be checked by counting and comparing. Knows no gold and no meaning.

The names and their arguments are those of IFEval (arXiv:2311.07911); the checks are our own. Words are runs of letters and
digits, sentences end at . ! or ?, paragraphs are parted by an empty line (by *** where IFEval says so).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edge_rl.errors import DataError

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
SENTENCE = re.compile(r"[^.!?。！？]*[^\W_][^.!?。！？]*(?:[.!?。！？]+|$)")
BULLET = re.compile(r"^\s*(?:\*(?!\*)|-)\s+\S", re.MULTILINE)
HIGHLIGHT = re.compile(r"\*\*[^*\n]*[^*\s][^*\n]*\*\*|\*[^*\n]*[^*\s][^*\n]*\*")
PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
TITLE = re.compile(r"<<[^<>\n]*\S[^<>\n]*>>")
RULE = re.compile(r"^\s*\*\*\*\s*$", re.MULTILINE)
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
SCRIPTS = {
    "bn": "\u0980-\u09ff", "hi": "\u0900-\u097f", "mr": "\u0900-\u097f", "ne": "\u0900-\u097f", "gu": "\u0a80-\u0aff",
    "pa": "\u0a00-\u0a7f", "ta": "\u0b80-\u0bff", "te": "\u0c00-\u0c7f", "kn": "\u0c80-\u0cff", "th": "\u0e00-\u0e7f",
    "ko": "\uac00-\ud7af", "ar": "\u0600-\u06ff", "fa": "\u0600-\u06ff", "ur": "\u0600-\u06ff", "ru": "\u0400-\u04ff",
    "bg": "\u0400-\u04ff", "he": "\u0590-\u05ff", "ja": "\u3040-\u30ff", "zh": "\u4e00-\u9fff", "el": "\u0370-\u03ff",
}  # fmt: skip
"""Script of each language that its script alone nearly decides."""

Check = Callable[[str, Mapping[str, Any]], bool | None]


def follows(text: str, instruction: Mapping[str, Any]) -> bool | None:
    """Return whether a text follows an instruction {"id": ..., argument: value}; None where that cannot be judged.

    Raises: DataError for an unknown id or an argument that is missing.
    """
    name = str(instruction.get("id", ""))
    if name not in INSTRUCTIONS:
        raise DataError(f"instruction {name!r} is not known; known: {', '.join(sorted(INSTRUCTIONS))}")
    try:
        return INSTRUCTIONS[name](text, instruction)
    except KeyError as error:
        raise DataError(f"instruction {name} lacks its argument {error}") from None


def count_words(text: str) -> int:
    """Return the number of words."""
    return len(WORD.findall(text))


def count_sentences(text: str) -> int:
    """Return the number of sentences."""
    return len(SENTENCE.findall(text))


def _compares(count: int, relation: str, wanted: int) -> bool:
    if relation in ("at least", "less than", "at most", "exactly", "more than"):
        return {
            "at least": count >= wanted,
            "less than": count < wanted,
            "at most": count <= wanted,
            "exactly": count == wanted,
            "more than": count > wanted,
        }[relation]
    raise DataError(f"relation {relation!r} is not known; use at least, at most, exactly, less than or more than")


def _has_word(word: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", text.casefold()))


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in RULE.split(text) if part.strip()]


def _plain_paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _nth_first_word(text: str, wanted: Mapping[str, Any]) -> bool:
    parts = _plain_paragraphs(text)
    place = int(wanted["nth_paragraph"])
    if len(parts) != int(wanted["num_paragraphs"]) or not 1 <= place <= len(parts):
        return False
    first = WORD.search(parts[place - 1])
    return first is not None and first.group().casefold() == str(wanted["first_word"]).casefold()


def _is_json(text: str, wanted: Mapping[str, Any]) -> bool:
    del wanted
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n?```", text.strip(), re.DOTALL | re.IGNORECASE)
    try:
        json.loads(fenced.group(1) if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str, wanted: Mapping[str, Any]) -> bool:
    del wanted
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _sections(text: str, wanted: Mapping[str, Any]) -> bool:
    marks = re.findall(rf"(?:^|\n)\s*\W*{re.escape(str(wanted['section_spliter']))}\s+\d+", text)
    return len(marks) >= int(wanted["num_sections"])


def _capital_words(text: str, wanted: Mapping[str, Any]) -> bool:
    count = sum(word.isupper() for word in WORD.findall(text))
    return _compares(count, str(wanted["capital_relation"]), int(wanted["capital_frequency"]))


def _letters(text: str, wanted: Mapping[str, Any]) -> bool:
    count = text.casefold().count(str(wanted["letter"]).casefold())
    return _compares(count, str(wanted["let_relation"]), int(wanted["let_frequency"]))


def _postscript(text: str, wanted: Mapping[str, Any]) -> bool:
    marker = re.escape(str(wanted["postscript_marker"])).replace(r"\.", r"\.\s?")
    return re.search(rf"(?:^|\n)\s*\W*{marker}\S*\s*\S", text, re.IGNORECASE) is not None


def _repeats_prompt(text: str, wanted: Mapping[str, Any]) -> bool:
    prompt = " ".join(str(wanted["prompt_to_repeat"]).casefold().split())
    given = " ".join(text.casefold().split())
    return given.startswith(prompt) and len(given) > len(prompt)


def _language(text: str, wanted: Mapping[str, Any]) -> bool | None:
    language = str(wanted["language"])
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return False
    latin = sum(character.isascii() for character in letters) / len(letters)
    if language not in SCRIPTS:
        return False if latin < 0.5 else None
    own = re.compile(f"[{SCRIPTS[language]}]")
    share = sum(own.match(character) is not None for character in letters) / len(letters)
    return share > 0.5


def _ends_with(text: str, wanted: Mapping[str, Any]) -> bool:
    return text.strip().strip('"').casefold().endswith(str(wanted["end_phrase"]).strip().casefold())


def _starts_with(text: str, wanted: Mapping[str, Any]) -> bool:
    return text.strip().casefold().startswith(str(wanted["start_phrase"]).strip().casefold())


def _is_quoted(text: str, wanted: Mapping[str, Any]) -> bool:
    del wanted
    stripped = text.strip()
    return len(stripped) > 2 and stripped.startswith('"') and stripped.endswith('"')


INSTRUCTIONS: dict[str, Check] = {
    "keywords:existence": lambda text, wanted: all(_has_word(str(word), text) for word in wanted["keywords"]),
    "keywords:forbidden_words": lambda text, wanted: (
        not any(_has_word(str(word), text) for word in wanted["forbidden_words"])
    ),
    "keywords:frequency": lambda text, wanted: _compares(
        _has_word(str(wanted["keyword"]), text), str(wanted["relation"]), int(wanted["frequency"])
    ),
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_words": lambda text, wanted: _compares(
        count_words(text), str(wanted["relation"]), int(wanted["num_words"])
    ),
    "length_constraints:number_sentences": lambda text, wanted: _compares(
        count_sentences(text), str(wanted["relation"]), int(wanted["num_sentences"])
    ),
    "length_constraints:number_paragraphs": lambda text, wanted: (
        len(_paragraphs(text)) == int(wanted["num_paragraphs"])
    ),
    "length_constraints:nth_paragraph_first_word": _nth_first_word,
    "detectable_content:number_placeholders": lambda text, wanted: (
        len(PLACEHOLDER.findall(text)) >= int(wanted["num_placeholders"])
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda text, wanted: (
        len(BULLET.findall(text)) == int(wanted["num_bullets"])
    ),
    "detectable_format:constrained_response": lambda text, wanted: any(option in text for option in CONSTRAINED),
    "detectable_format:number_highlighted_sections": lambda text, wanted: (
        len(HIGHLIGHT.findall(text)) >= int(wanted["num_highlights"])
    ),
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _is_json,
    "detectable_format:title": lambda text, wanted: TITLE.search(text) is not None,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeats_prompt,
    "startend:end_checker": _ends_with,
    "startend:start_checker": _starts_with,
    "startend:quotation": _is_quoted,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda text, wanted: text.isupper(),
    "change_case:english_lowercase": lambda text, wanted: text.islower(),
    "punctuation:no_comma": lambda text, wanted: not re.search("[,，、]", text),
}
"""To add one: a function (text, arguments) -> True, False or None, and the line here."""
