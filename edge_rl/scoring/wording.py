"""Words and option letters as answers. Knows no mathematics and no gold beyond the word it is given."""

import re
from collections.abc import Mapping, Sequence

from edge_rl.scoring.expressions.characters import clean_text
from edge_rl.scoring.extraction import Commitment
from edge_rl.scoring.statements import Statement, unmark

TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph|texttt|textsf|operatorname|underline)\s*\{([^{}]*)\}"
)
LATEX_LAYOUT = re.compile(r"\\[,;:! ]|\\left|\\right|\\quad|\$|\\\(|\\\)|\\\[|\\\]|~")
ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
HALF_DAY = re.compile(r"\b([ap])\.?\s?m\b\.?", re.IGNORECASE)
PUNCTUATION = " \t\n.,;:!?。，！？；：'\"*`_"
BEFORE_ANSWER = frozenset(
    "is are was were be been equals on at in by called named to from into of with for : = becomes become remains stays means "
    "says chose choose pick a an the 是 为 在".split()
)
DENIES = re.compile(
    r"\b(?:not|never|no|neither|nor|n't|cannot|without|except|unless|than|if)\b|n't\b|不|非|没", re.IGNORECASE
)
SUBJECT = re.compile(
    r"^(?:the\s+)?(?P<word>.+?)\s+(?:is|was|are)\s+(?:the\s+)?(?:correct|right|final|best)?\s*(?:answer|option|choice|one|correct|right)$",
    re.IGNORECASE,
)
LETTER = re.compile(r"^(?:option|choice|answer)?\s*[\(\[{]?\s*([A-Z])\s*[\)\]}]?(?P<rest>.*)$", re.DOTALL)
LETTER_LIST = re.compile(r"(?<![A-Za-z'])\(?([A-Z])\)?(?![A-Za-z'])")
CHOOSING = re.compile(
    r"\b(?:choose|pick|select|going with|go with|option|choice|is|was|it's|be)\s*:?\s*(?:option\s+)?"
    r"[\(\*$]*(?:\\text\{)?\(?([A-Z])\)?(?![A-Za-z'’])",
    re.IGNORECASE,
)


def plain_words(text: str, *, case_sensitive: bool = False) -> str:
    """Return text in one form: composed characters, one space, no case, no marks around it, PM for p.m."""
    text = clean_text(text)
    previous = None
    while previous != text:
        previous = text
        text = TEXT_COMMAND.sub(r"\1", text)
    text = LATEX_LAYOUT.sub(" ", text)
    text = HALF_DAY.sub(lambda match: match.group(1).upper() + "M", unmark(text))
    text = " ".join(text.split()).strip(PUNCTUATION)
    text = ARTICLE.sub("", text) if not case_sensitive else text
    return text if case_sensitive else text.casefold()


def commits_to_words(commitment: Commitment, accepted: Sequence[str], *, case_sensitive: bool = False) -> bool:
    """Return whether the commitment is one of the accepted wordings of one answer, and nothing else."""
    golds = {plain_words(word, case_sensitive=case_sensitive) for word in accepted}
    if commitment.statement is not None:
        return any(_states(commitment.statement, gold, case_sensitive) for gold in golds)
    return bool(commitment.values) and all(
        plain_words(value, case_sensitive=case_sensitive) in golds for value in commitment.values
    )


def _states(statement: Statement, gold: str, case_sensitive: bool) -> bool:
    def words(text: str) -> str:
        return plain_words(text, case_sensitive=case_sensitive)

    if not gold:
        return False
    sentence = words(statement.sentence)
    if sentence == gold:
        return True
    if statement.is_claim:
        return words(statement.value or "") == gold
    if statement.is_doubtful or DENIES.search(sentence):
        return False
    if statement.value is not None and words(statement.value) == gold:
        return True
    marked = re.findall(r"\*\*([^*]+)\*\*", statement.sentence + ("**" if statement.sentence.count("**") % 2 else ""))
    if len(marked) == 1 and words(marked[0]) == gold:
        return True
    if (match := SUBJECT.match(sentence)) and match.group("word") == gold:
        return True
    if not sentence.endswith(gold):
        return False
    before = sentence[: -len(gold)]
    last = before.split()[-1] if before.split() else ""
    is_boundary = before.endswith((" ", ":", "=")) or not last.isascii()
    return is_boundary and (last in BEFORE_ANSWER or last[-1:] in (":", "=", "是", "为", "在"))


def chosen_letters(commitment: Commitment, options: Mapping[str, str]) -> set[str]:
    """Return the option letters that a commitment names: one for an answer, several for a hedge, none for neither.

    `options` maps letters to their texts, where the sample has them; an option's full text names its letter.
    """
    if commitment.statement is not None:
        return _letters_of_statement(commitment.statement, options)
    return {letter for value in commitment.values for letter in _letters_of(value, options) or {""}}


def _letters_of_statement(statement: Statement, options: Mapping[str, str]) -> set[str]:
    whole = plain_words(statement.sentence, case_sensitive=True)
    if statement.is_claim:
        return _letters_of(statement.value or "", options)
    if re.fullmatch(r"\(?[A-Za-z]\)?", whole) or re.match(r"^\(?[A-Z][).:]\s", clean_text(statement.sentence)):
        return _letters_of(whole, options)
    if statement.is_doubtful:
        return set()
    named = {match.group(1) for match in CHOOSING.finditer(clean_text(statement.sentence)) if match.group(1).isupper()}
    return named or _by_text(whole, options)


def _letters_of(text: str, options: Mapping[str, str]) -> set[str]:
    text = plain_words(text, case_sensitive=True)
    if re.fullmatch(r"\(?[A-Za-z]\)?", text):
        return {text.strip("()").upper()}
    if by_text := _by_text(text, options):
        return by_text
    match = LETTER.match(text)
    if match is None:
        return {letter for letter in CHOOSING.findall(text) if letter.isupper()}
    rest = match.group("rest").strip()
    # "A good guess" and "I think" begin with words, not with options.
    is_word = (
        match.group("rest")[:1] == " " and rest[:1].islower() and not re.match(r"(?:and|or|is|because|since)\b", rest)
    )
    if match.group("rest")[:1].isalpha() or (is_word and match.group(1) in "AI"):
        return {letter for letter in CHOOSING.findall(text) if letter.isupper()}
    others: set[str] = set()
    if (
        re.match(r"^[\s,;/&)]*(?:(?:and|or)\b|[,;/&])", rest)
        or re.search(r"\b(?:or|and)\s+\(?[A-Z]\)?\s*$", rest)
        or re.fullmatch(r"(?:\s*\(?[A-Z]\)?)+", rest)
    ):
        others = set(LETTER_LIST.findall(rest))
    return {match.group(1)} | others


def _by_text(text: str, options: Mapping[str, str]) -> set[str]:
    wanted = plain_words(text)
    return {letter.upper() for letter, content in options.items() if wanted and plain_words(content) == wanted}
