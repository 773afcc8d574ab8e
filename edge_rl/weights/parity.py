"""Does llama.cpp see what transformers sees? Token ids, rendered prompts and next-token distributions, side by side.

Knows a merged model with its tokenizer and a running server over its GGUF. The real engine is asked, not only the file:
llama.cpp also rounds activations to 8 bit where weights have 8 bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from edge_rl.errors import ExportError
from edge_rl.weights.llama_cpp import LlamaServer

MIN_PROBABILITY = 0.01
"""Only tokens at least so likely are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What rounding explains; a wrong conversion is off by whole units."""

    top1_agreement: float
    """Lowest share of positions with the same likeliest token."""
    mean_gap: float
    """Largest mean difference in log-probability."""
    max_gap: float
    """Largest single difference."""


LIMITS: dict[str, Limits] = {
    "f16": Limits(top1_agreement=0.97, mean_gap=0.02, max_gap=0.25),
    "q8_0": Limits(top1_agreement=0.85, mean_gap=0.25, max_gap=2.0),
}
"""Measured on SmolLM2-135M: f16 1.0, 0.002, 0.016; q8_0 0.95, 0.08, 0.54 (it also rounds activations to 8 bit)."""

_PHRASES = (
    "Hello, world!",
    "What is 12345 * 678?",
    "The total is $1,234.56, i.e. 7% of 17637.",
    "```python\nprint(37 * 41)\n```",
    "```output\n1517\n```\n",
    "for i in range(10):\n    if i % 2 == 0:\n\t\tprint(i)\n",
    "\\boxed{42}",
    "The answer is \\boxed{-3.5}.",
    "it's we're I'll don't they'd I'm you've",
    "IT'S WE'RE I'LL",
    "naïve café, Größe, Ærø, Łódź",
    "日本語のテキスト、漢字とカナ",
    "Привет, мир! Как дела?",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "😀🎉👩‍👩‍👧‍👦 🇩🇪",
    "∑_{i=1}^{n} x_i² ≤ √2 · π",
    "½ + ¾ = 1¼, x³, H₂O, ٣٤٥, 一二三",
    "a  b   c    d",
    "tabs\tand\t\ttabs",
    "line\nbreaks\n\nand\n\n\nmore",
    "carriage\r\nreturn\r\n\r\n",
    "trailing space ",
    " leading space",
    "   ",
    "\n",
    "\n\n \n",
    "snake_case camelCase kebab-case __dunder__",
    "https://example.org/a?b=c&d=%20#e",
    '{"key": [1, 2.5, null, true]}',
    "<tag attr='x'>text</tag>",
    "a=b+c-d*e/f//g**h%i&j|k^~l<<m>>n",
    "!!! ??? ... ,,, ;;; ---",
    "\"quoted\" 'single' “curly” \u2018curly\u2019 «guillemets»",
    "x" * 100,
    "0" * 30,
    "1 22 333 4444 55555",
    "3.14159 2.71828e-10 0x1F 0b1010 1_000_000",
    "12:30:45 2026-01-31 +49-30-1234567",
    "CamelCaseWords ALLCAPS MiXeD123abc",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """How far a GGUF in llama.cpp is from the model in transformers."""

    format: str
    num_texts: int
    """Texts whose token ids are equal in both; none may differ."""
    num_chats: int
    """Conversations whose rendered prompt is equal in both; none may differ."""
    num_positions: int
    """Positions of greedy continuations whose distributions were compared."""
    top1_agreement: float
    max_logprob_gap: float
    """Over tokens of at least MIN_PROBABILITY."""
    mean_logprob_gap: float


def token_corpus(special_tokens: Sequence[str], prompts: Sequence[str]) -> list[str]:
    """Return about 200 texts: code, numbers, scripts, white space, special tokens amid text, and given prompts."""
    pairs = [
        left + joint + right
        for joint, shift in (("", 7), (" ", 5), ("\n", 3), ("", 1), (".", 11))
        for left, right in zip(_PHRASES, _PHRASES[shift:], strict=False)
    ]
    specials = [f"{token}user\nHi 12{token} tail" for token in special_tokens[:24]]
    return [*_PHRASES, *pairs, *specials, *prompts]


def compare(
    server: LlamaServer,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    *,
    format: str,
    max_tokens: int = 16,
) -> ParityReport:
    """Compare a GGUF in its server with the merged model it was made from.

    Args:
        server: runs the GGUF.
        model: the merged model in float32.
        tokenizer: its tokenizer.
        prompts: token ids of held-out prompts; llama.cpp continues each greedily.
        format: which of LIMITS hold.
        max_tokens: length of each continuation.

    Raises: ExportError for the first difference that is more than rounding.
    """
    num_texts = _compare_tokens(server, tokenizer, prompts)
    num_chats = _compare_chats(server, tokenizer)
    gaps, same = _compare_distributions(server, model, prompts, max_tokens)
    report = ParityReport(
        format=format,
        num_texts=num_texts,
        num_chats=num_chats,
        num_positions=len(same),
        top1_agreement=sum(same) / len(same) if same else math.nan,
        max_logprob_gap=max(gaps, default=math.nan),
        mean_logprob_gap=sum(gaps) / len(gaps) if gaps else math.nan,
    )
    _check(report, LIMITS[format])
    return report


def _check(report: ParityReport, limits: Limits) -> None:
    """A number that is not a number fails too."""
    is_close = report.mean_logprob_gap <= limits.mean_gap and report.max_logprob_gap <= limits.max_gap
    if not (is_close and report.top1_agreement >= limits.top1_agreement):
        raise ExportError(
            f"the {report.format} file gives other answers in llama.cpp than the model: likeliest token equal at "
            f"{report.top1_agreement:.1%} of {report.num_positions} positions (at least {limits.top1_agreement:.0%} "
            f"expected), log-probabilities {report.mean_logprob_gap:.3f} apart in the mean and {report.max_logprob_gap:.3f} "
            f"at most ({limits.mean_gap} and {limits.max_gap} allowed); do not use it"
        )


def _compare_tokens(server: LlamaServer, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]]) -> int:
    rendered = [cast(str, tokenizer.decode(list(prompt), skip_special_tokens=False)) for prompt in prompts]
    corpus = token_corpus(tokenizer.all_special_tokens, rendered)
    for text in corpus:
        expected = list(tokenizer.encode(text))
        found = server.tokenize(text)
        if found != expected:
            place = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), 0)
            raise ExportError(
                f"llama.cpp cuts {text[:60]!r} into other tokens than the tokenizer: from place {place} on "
                f"{found[place : place + 4]}, expected {expected[place : place + 4]}"
            )
    return len(corpus)


def _compare_chats(server: LlamaServer, tokenizer: PreTrainedTokenizerBase) -> int:
    """Single-turn prompts, with and without a system message, must be rendered the same, character by character."""
    user = ({"role": "user", "content": text} for text in ("What is 7 * 8?", "Grüße!\n\n  - a\n  - b ", "1 < 2 & 'x'"))
    chats = [[message] for message in user]
    system = {"role": "system", "content": "Solve the problem. You may run Python."}
    chats += [[system, chats[0][0]], [system, chats[1][0]]]
    bos = cast(str | None, tokenizer.bos_token) or ""
    for chat in chats:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        body: dict[str, Any] = {"messages": chat, "chat_template_kwargs": {"enable_thinking": False}}
        found = str(server.post("/apply-template", body)["prompt"])
        expected = str(text)
        adds_bos = bool(bos) and server.tokenize("a")[:1] == [tokenizer.bos_token_id]
        if adds_bos:  # then the server takes it off the text and puts the token there: one start token in both
            expected, found = expected.removeprefix(bos), found.removeprefix(bos)
        if found != expected:
            raise ExportError(
                f"llama.cpp renders the chat template as {found[:200]!r}, transformers as {expected[:200]!r}"
            )
    return len(chats)


@torch.no_grad()
def _compare_distributions(
    server: LlamaServer, model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[list[float], list[bool]]:
    """Gaps in log-probability of likely tokens, and whether the likeliest token is the same, over all positions."""
    gaps: list[float] = []
    same: list[bool] = []
    for prompt in prompts:
        tokens, tops = server.greedy(prompt, max_tokens)
        logits = cast(Any, model)(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        logprobs_TV: torch.Tensor = logits.float().log_softmax(dim=-1)
        for logprobs_V, top in zip(logprobs_TV, tops, strict=True):
            same.append(int(logprobs_V.argmax()) == max(top, key=lambda token: top[token]))
            gaps += [
                abs(float(logprobs_V[token]) - value)
                for token, value in top.items()
                if value >= math.log(MIN_PROBABILITY)
            ]
    return gaps, same
