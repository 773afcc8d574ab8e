"""The closing statement of a completion: which sentence answers, and which part of it is the answer.

Knows English and Chinese phrases of claiming, denying, doubting and taking back; no kind of answer. Text never instructs it.
"""

import re
from dataclasses import dataclass

MAX_SENTENCE = 1_000
MAX_TAIL = 4_000
"""Only so many characters at the end are read for a statement."""

CUE = re.compile(
    r"\b(?:the\s+|my\s+|so\s+)?(?:final\s+|correct\s+|right\s+|best\s+)*(?:answers?|option|choice)\**\s*"
    r"(?:(?:to\s+(?:the|this)\s+(?:question|problem)|here|therefore|thus|is|are|must\s+be|should\s+be|will\s+be|would\s+be|"
    r"was|equals)\b\s*)*(?P<colon>[:=：]?)\**\s*(?:[:=：]\s*)?"
    r"|(?:最终|正确)?(?:答案|选项|结果)\s*(?:应该|应)?(?:是|为|：|:)+\s*|(?:应)?选(?:择)?\s*(?:的是|是|：|:)?\s*"
    r"|\b(?:respuesta|réponse|antwort|ответ|resposta|risposta)\b[^:.\n]{0,20}?(?::|\b(?:es|est|ist|lautet|é|è)\b)\s*",
    re.IGNORECASE,
)
CUE_VERB = re.compile(r"\b(?:is|are|be|was|equals)\b|[:=：]|是|为|选|\b(?:es|est|ist|lautet|é|è)\b", re.IGNORECASE)
HEADING = re.compile(r"^[\W_]*(?:the\s+)?(?:final\s+)?answer[\W_]*$", re.IGNORECASE)
NOT_OWN = re.compile(
    r"\b(?:expected|gold|golden|reference|ground[- ]?truth|target|official|grader'?s?|book'?s|key|marked|given|student'?s?|"
    r"wrong|incorrect|false|another|other|possible|common|their|his|her)\s*$",
    re.IGNORECASE,
)
QUOTED = re.compile(r'"[^"\n]{0,300}"|“[^”\n]{0,300}”|«[^»\n]{0,300}»')
NEGATION_AT_END = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot be|can't be|isn't|aren't|wasn't|ain't|rather than|instead of|other than|except|"
    r"excluding|unlike)|n't be|不是|并非|而非)(?:\s+(?:equal(?:s)?(?:\s+to)?|the|a|an|just|simply|be|is|:))*[\s$*_`:({\[\\]*$",
    re.IGNORECASE,
)
WITHDRAWN = re.compile(
    r"\b(?:wait\b|oops|nope|scratch that|never ?mind|i take (?:it|that) back|i retract|disregard|i withdraw|"
    r"let me (?:re|try again|check again|start over)|on second thought|"
    r"(?:that|this|it|which|the above)(?:'s| is| was| must be| seems| looks| can't be| cannot be| isn't| is not)\s+"
    r"(?:\w+\s+){0,2}?(?:wrong|incorrect|mistaken|a mistake|an error|not right|not correct|right|correct)|"
    r"(?:i|we) (?:made|make) (?:a|an) (?:mistake|error)|that can(?:'t|not) be)|"
    r"(?<![\w'])no, |(?:^|[.!?]\s+)no[.!]|等等|不对|错了",
    re.IGNORECASE,
)
AFFIRMED = re.compile(r"\b(?:is|was|'s)\s+(?:\w+\s+){0,2}?(?:right|correct)\b", re.IGNORECASE)
DENIED_AFTER = re.compile(
    r"^[\s$*_`}.)\]]*(?:is|was|are|would be)\s+(?:clearly\s+)?(?:wrong|incorrect|not (?:right|correct)|false)",
    re.IGNORECASE,
)
DENIED_TAIL = re.compile(
    r"[,;(]?\s*(?:and |but )?\b(?:not|rather than|instead of|never|as opposed to)\b\s[^,;]*$|[，,]?(?:不是|而不是|而非).*$",
    re.IGNORECASE,
)
NOT_BUT = re.compile(
    r"^(?:(?:is|are|was)\s+)?(?:not|n't)\b.*?\bbut\s+(?:rather\s+|instead\s+)?(.*)$|^(?:不是).*?(?:而是)(.*)$",
    re.IGNORECASE | re.DOTALL,
)
LATER_CLAUSE = re.compile(
    r"(?:[,;]\s*|\b)(?:so|thus|hence|therefore|but|and|instead)\b,?\s*(?:(?:it|the (?:value|number|answer|result|total))\s*)?"
    r"(?:is|'s|must be|are|equals|=)\s+(?P<value>.*)$|[,;]\s*it(?:'s| is| must be)\s+(?P<other>.*)$|"
    r"，(?:所以|因此)(?:是|选)?(?P<third>.*)$",
    re.IGNORECASE,
)
STARTS_DENIED = re.compile(r"^[\s*_`$]*(?:not|never|neither|none of|unknown|unclear|n't|不是|isn't)\b", re.IGNORECASE)
REASON = re.compile(
    r"[,;]?\s+\b(?:because|since|which|as required|as desired|as shown|where|assuming|provided)\b.*$|[，,](?:因为).*$",
    re.IGNORECASE,
)
DOUBT = re.compile(
    r"\b(?:not able|unable|cannot (?:solve|determine|find|say)|can't (?:solve|determine|find|say)|could not|"
    r"couldn't|don't know|"
    r"do not know|unsure|not sure|uncertain|no idea|hard to say|maybe|perhaps|might|could be|may be|possibly|either|"
    r"if i had to|impossible to|tricky|tempting)\b|[?？]",
    re.IGNORECASE,
)
CODE_TEXT = re.compile(
    r"\b[A-Za-z_]{2,}\s*=\s*[\w.]+[\s,;]+[A-Za-z_]{2,}\s*=|[\"']\s*:|==|"
    r"\b(?!sqrt|sin|cos|tan|cot|sec|csc|arc|log|ln|exp|gcd|lcm|max|min)[A-Za-z_]\w+\(|"
    r"^\s*(?:assert|return|import|def|lambda|print)\b",
    re.IGNORECASE,
)
MACHINE_TEXT = re.compile(
    rf"{CODE_TEXT.pattern}|\bSYSTEM\b|\breward\b|\bgrad(?:er|ing)\b|\bexpected\s*=|</?\w+>", re.IGNORECASE
)
"""Code, data and words to a grader: a sentence of this kind commits to nothing."""
COPULA = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|gives?|gave|yields?|makes?|gets?|got|leaves?|costs?|totals?|needs?|takes?|has|have|had|"
    r"obtain|find|becomes?|reach(?:es)?|pays?|paid|earns?|earned|spends?|spent|sells?|sold|owns?|in total|left with|"
    r"answer|equal to|works out to|amounts to|comes to)\b|是|为|有|等于|得)\s*"
    r"(?:exactly\s+|only\s+|just\s+|about\s+|the\s+|equal\s+to\s+|to\s+be\s+)*",
    re.IGNORECASE,
)
EQUALS = re.compile(r"[=≈]|(?<!\d)[:：]|[:：](?!\d)")
PLEASANTRY = re.compile(
    r"^\W*(?:i )?(?:hope (?:this|that|it)|let me know|feel free|if you (?:have|need)|good luck|thank|you're welcome|happy to|"
    r"please let|have a (?:nice|great|good)|q\.?e\.?d|done|end|\\square|□|∎|■)",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[。！？])|(?<=[.!?])(?=[\s*_]*\s)|(?<=[.!?][)\"”*])\s|\n+")
ABBREVIATION = re.compile(
    r"(?:\b(?:a\.m|p\.m|e\.g|i\.e|approx|no|mr|mrs|ms|dr|st|vs|cf|eq|fig|sq|ft|in|hr|min|etc))\.$", re.IGNORECASE
)
RULE = re.compile(r"^[\W_]*$")


@dataclass(frozen=True, slots=True)
class Statement:
    """The sentence that answers."""

    sentence: str
    """The whole sentence, without a denied tail."""
    value: str | None
    """What stands where the answer should ("The answer is X"); None where only the sentence is known."""
    is_claim: bool
    """Whether words such as "answer" introduced the value."""
    is_doubtful: bool
    """Whether the sentence doubts or asks: it counts only if it is nothing but a value."""


def closing_statement(text: str) -> Statement | None:
    """Return the statement that a text ends with; None if it takes its answer back or says nothing.

    A sentence that claims an answer counts even where harmless sentences follow; otherwise the last sentence does.
    """
    tail = text[-MAX_TAIL:]
    claim = _last_claim(tail)
    if claim is not None:
        content, rest = claim
        if not is_withdrawn(rest):
            value = settle(content)
            return None if value is None else Statement(value, value, is_claim=True, is_doubtful=False)
        tail = rest
    sentences = [part for part in split_sentences(tail) if not PLEASANTRY.match(part)]
    if not sentences or (
        claim is not None and WITHDRAWN.search(sentences[-1]) and len(sentences) == 1 and ";" not in sentences[-1]
    ):
        return None
    return _from_sentence(sentences[-1])


def split_sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text that hold at least one letter or digit."""
    parts: list[str] = []
    for part in SENTENCE_END.split(text):
        if parts and ABBREVIATION.search(parts[-1].rstrip()) and "\n" not in part and part.strip()[:1].islower():
            parts[-1] += part
        else:
            parts.append(part)
    return [part.strip() for part in parts if not RULE.match(part)]


def is_negated(lead: str) -> bool:
    """Return whether the words right before a value deny it."""
    return NEGATION_AT_END.search(lead) is not None


def is_withdrawn(rest: str) -> bool:
    """Return whether the words after a value take it back."""
    if DENIED_AFTER.match(rest):
        return True
    return any(not _affirms(match.group()) for match in WITHDRAWN.finditer(rest[:MAX_TAIL]))


def settle(content: str) -> str | None:
    """Return the value in the words after "the answer is": no denied tail, no reasons; None where it is denied."""
    content = content.strip()
    if match := NOT_BUT.match(content):
        content = (match.group(1) or match.group(2) or "").strip()
    elif STARTS_DENIED.match(content):
        match = LATER_CLAUSE.search(content)
        if match is None:
            return None
        content = next(group for group in match.groups() if group is not None)
    content = DENIED_TAIL.sub("", content)
    content = REASON.sub("", content)
    if DENIED_AFTER.search(content):
        return None
    return unmark(content) or None


def unmark(text: str) -> str:
    """Return text without the marks of emphasis, code and quotation around it, and without its full stop."""
    text = text.strip()
    while True:
        before = text
        text = text.strip().strip("*`").strip()
        for opening, closing in (("__", "__"), ('"', '"'), ("“", "”"), ("'", "'"), ("_", "_")):
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                text = text[len(opening) : -len(closing)]
        if text.endswith((".", "。", "!", "！", ",", ";", ":")) and not re.search(r"\b[ap]\.m\.$", text, re.IGNORECASE):
            text = text[:-1]
        if text == before:
            return text


def _last_claim(text: str) -> tuple[str, str] | None:
    """Return (the words after the last claim of an answer, the text after that sentence)."""
    masked = QUOTED.sub(lambda match: "\x00" * len(match.group()), text)
    found: tuple[str, str] | None = None
    for match in CUE.finditer(masked):
        if NOT_OWN.search(masked[max(0, match.start() - 30) : match.start()]) or not CUE_VERB.search(match.group()):
            continue
        line = masked[masked.rfind("\n", 0, match.start()) + 1 :][:MAX_SENTENCE].split("\n")[0]
        if CODE_TEXT.search(line):
            continue
        found = _content_after(text, match.end()) or found
    lines = text.split("\n")
    for place in range(len(lines) - 1, 0, -1):
        if HEADING.match(lines[place - 1]) and not RULE.match(lines[place]) and found is None:
            return lines[place], "\n".join(lines[place + 1 :])
    return found


def _content_after(text: str, start: int) -> tuple[str, str] | None:
    rest = text[start : start + MAX_SENTENCE]
    lines = rest.split("\n")
    for place, line in enumerate(lines[:4]):
        if RULE.match(line):
            continue
        parts = split_sentences(line)
        content = parts[0]
        at = text.index(content, start)
        del place
        return content, text[at + len(content) :]
    return None


def _from_sentence(sentence: str) -> Statement | None:
    if len(sentence) > MAX_SENTENCE or MACHINE_TEXT.search(sentence):
        return None
    doubtful = DOUBT.search(sentence) is not None
    later = LATER_CLAUSE.search(sentence) if STARTS_DENIED.match(sentence) else None
    if match := NOT_BUT.match(sentence):
        value = unmark(match.group(1) or match.group(2) or "")
        return Statement(value, value, is_claim=True, is_doubtful=doubtful)
    if STARTS_DENIED.match(sentence) and later is None:
        return None
    plain = unmark(REASON.sub("", DENIED_TAIL.sub("", sentence)))
    copulas = list(COPULA.finditer(plain)) or list(EQUALS.finditer(plain))
    value = unmark(plain[copulas[-1].end() :]) if copulas else None
    if copulas and (is_negated(plain[: copulas[-1].end()]) or (value and STARTS_DENIED.match(value))):
        return None
    return Statement(plain, value or None, is_claim=False, is_doubtful=doubtful)


def _affirms(text: str) -> bool:
    return AFFIRMED.search(text) is not None and not re.search(r"\b(?:not|isn't|can't|cannot)\b", text, re.IGNORECASE)
