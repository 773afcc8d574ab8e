"""Samples to token ids: what the model is shown, and the traces that it imitates. Knows a tokenizer only as a protocol.

Layout for a tokenizer without a chat template (a base model), documented here because the GGUF's users must repeat it:

    <system text>

    Problem: <question>

    Solution:
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

from edge_rl.data.hints import insert_hints
from edge_rl.errors import DataError
from edge_rl.types import Author, Prompt, Sample, TraceSegment

FIXED_DATE = "01 Jan 2026"
"""Some chat templates (Llama 3.2) print today's date; a prompt must not change from one day to the next."""


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that prompts need."""

    @property
    def bos_token_id(self) -> Any:
        """Token that opens a document, or None."""
        ...

    @property
    def eos_token_id(self) -> Any:
        """Token that ends a turn, or None."""
        ...

    @property
    def chat_template(self) -> Any:
        """Jinja text, or None for a base model."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """Return the token ids of a text."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> Any:
        """Return the conversation as text (`tokenize=False`)."""
        ...


def build_prompt(
    sample: Sample, tokenizer: ChatTokenizer, *, system: str, examples: Sequence[Sample] = (), think: bool = False
) -> Prompt:
    """Return the prompt of a sample: system text and question in the model's chat template, ready for its reply.

    `examples` are shown before the question, each as a question with its trace for a reply.
    `system` may be empty: then the template decides. A template that knows no system role gets it in front of the
    question. `think` turns a thinking mode on or off. At most one beginning-of-sequence token.

    Raises: DataError if the template refuses even a lone question, or `think` asks for a mode that it does not have.
    """
    if think and not can_think(tokenizer):
        raise DataError("data.think is on, but the model's chat template has no thinking mode; set data.think=off")
    if tokenizer.chat_template:
        text = _render_chat(_conversations(sample.question, system, examples), tokenizer, think=think)
        token_ids = list(tokenizer.encode(text, add_special_tokens=False))  # the template writes its own BOS
    else:
        text = f"{system}\n\n" if system else ""
        for example in examples:
            text += f"Problem: {example.question}\n\nSolution:\n{trace_text(example)}\n\n"
        text += f"Problem: {sample.question}\n\nSolution:\n"
        token_ids = list(tokenizer.encode(text, add_special_tokens=True))
        if token_ids and token_ids[-1] == tokenizer.eos_token_id:
            token_ids.pop()  # some tokenizers close every text; the model is to continue this one
    bos = tokenizer.bos_token_id
    while bos is not None and token_ids[:2] == [bos, bos]:
        token_ids.pop(0)
    return Prompt(sample_id=sample.id, token_ids=tuple(token_ids), shots=len(examples))


def can_think(tokenizer: ChatTokenizer) -> bool:
    """Return whether the chat template knows a thinking mode: a switch, or a think block that it opens."""
    template = str(tokenizer.chat_template or "")
    return "enable_thinking" in template or "<think>" in template


def trace_text(sample: Sample) -> str:
    """Return a sample's trace as one text, hints and tool results included.

    Raises: DataError if it has none.
    """
    if not sample.trace:
        raise DataError(f"sample {sample.id} has no trace to show; a worked example needs one")
    return "".join(segment.text for segment in _hinted_trace(sample))


def _hinted_trace(sample: Sample) -> tuple[TraceSegment, ...]:
    return insert_hints(sample.trace, [hint for hint in sample.hints if hint.position is not None])


def encode_trace(sample: Sample, tokenizer: ChatTokenizer) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the completion that a sample's trace shows, as ([T] token ids, [T] loss mask), for fine-tuning.

    The hints become the model's own voice: they are joined with the policy text around them, tokenised with it, and in
    the loss. Each tool result is tokenised on its own, as the collector appends it, and masked out. The end-of-turn
    token follows and is in the loss.

    Raises: DataError if the sample has no trace, its hints do not fit, or the tokenizer has no end-of-turn token.
    """
    if not sample.trace:
        raise DataError(f"sample {sample.id} has no trace to imitate; fine-tune on samples that carry one")
    if tokenizer.eos_token_id is None:
        raise DataError("the tokenizer has no end-of-turn token (eos_token_id); set one")
    token_ids: list[int] = []
    loss_mask: list[bool] = []
    for is_tool, run in groupby(_hinted_trace(sample), key=lambda segment: segment.author is Author.TOOL):
        text = "".join(segment.text for segment in run)
        run_ids = tokenizer.encode(text, add_special_tokens=False)
        token_ids.extend(run_ids)
        loss_mask.extend([not is_tool] * len(run_ids))
    return (*token_ids, int(tokenizer.eos_token_id)), (*loss_mask, True)


def _conversations(question: str, system: str, examples: Sequence[Sample]) -> list[list[dict[str, str]]]:
    """Return the ways to say it, the best first: with the system text in its role, else in front of the first question."""
    turns = [
        {"role": role, "content": content}
        for example in examples
        for role, content in (("user", example.question), ("assistant", trace_text(example)))
    ]
    turns.append({"role": "user", "content": question})
    if not system:
        return [turns]
    first, *rest = turns
    return [
        [{"role": "system", "content": system}, *turns],
        [{"role": "user", "content": f"{system}\n\n{first['content']}"}, *rest],
    ]


def _render_chat(attempts: list[list[dict[str, str]]], tokenizer: ChatTokenizer, *, think: bool) -> str:
    from jinja2 import TemplateError  # only a chat template needs it, and then the tokenizer has brought it

    reason = ""
    for conversation in attempts:
        try:
            return tokenizer.apply_chat_template(
                conversation,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=think,
                date_string=FIXED_DATE,
            )
        except TemplateError as error:
            reason = str(error)
    raise DataError(f"the chat template refuses a question with and without a system message: {reason}")
