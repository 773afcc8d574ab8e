from collections.abc import Sequence
from typing import Any

import pytest
from jinja2 import TemplateError

from edge_rl.data.prompts import build_prompt, encode_trace
from edge_rl.errors import DataError
from edge_rl.types import Author, Hint, HintKind, Sample, TraceSegment

BOS, EOS, PAIR = 1, 2, 3


class CharTokenizer:
    """One token a character, except that "```" is one token too; the specials are written <s> and </s>."""

    def __init__(self, *, chat: bool = True, bos: int | None = BOS, adds_eos: bool = False, refuses: str = "") -> None:
        self.bos_token_id = bos
        self.eos_token_id: int | None = EOS
        self.chat_template = "template" if chat else None
        self.adds_eos = adds_eos
        self.refuses = refuses
        self.template_arguments: dict[str, Any] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        for special, token in (("<s>", chr(BOS)), ("</s>", chr(EOS)), ("```", chr(PAIR))):
            text = text.replace(special, token)
        token_ids = [ord(character) for character in text]
        if add_special_tokens and self.bos_token_id is not None:
            token_ids.insert(0, self.bos_token_id)
        if add_special_tokens and self.adds_eos:
            token_ids.append(EOS)
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text = "".join(chr(token) for token in token_ids)
        return text.replace(chr(BOS), "<s>").replace(chr(EOS), "</s>").replace(chr(PAIR), "```")

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> Any:
        assert not tokenize
        assert add_generation_prompt
        self.template_arguments = kwargs
        if any(message["role"] == self.refuses for message in conversation):
            raise TemplateError(f"{self.refuses} role is not supported")
        return "<s>" + "".join(f"[{message['role']}]{message['content']}</s>" for message in conversation) + "[me]"


SAMPLE = Sample(
    id="a",
    question="12 times 34?",
    answer="408",
    trace=(
        TraceSegment(author=Author.POLICY, text="12 is ``"),
        TraceSegment(author=Author.TOOL, text="\n408\n"),
        TraceSegment(author=Author.POLICY, text="Hm: 408."),
    ),
    hints=(
        Hint(kind=HintKind.FREE, text="`x``", position=7),
        Hint(kind=HintKind.DISTRUST_RESULT, text=" yes,", position=16),
        Hint(kind=HintKind.FREE, text="for the ladder", tier=1),
    ),
)


def test_build_prompt_wraps_system_and_question_in_the_template() -> None:
    tokenizer = CharTokenizer(adds_eos=True)  # what the tokenizer adds by itself has no place behind a template
    prompt = build_prompt(SAMPLE, tokenizer, system="Be brief.")
    assert tokenizer.decode(prompt.token_ids) == "<s>[system]Be brief.</s>[user]12 times 34?</s>[me]"
    assert (prompt.sample_id, prompt.hint_level, prompt.shots) == ("a", 0, 0)
    assert tokenizer.template_arguments["enable_thinking"] is False


def test_build_prompt_leaves_an_empty_system_text_to_the_template() -> None:
    tokenizer = CharTokenizer()
    prompt = build_prompt(SAMPLE, tokenizer, system="")
    assert tokenizer.decode(prompt.token_ids) == "<s>[user]12 times 34?</s>[me]"


def test_build_prompt_moves_the_system_text_where_its_role_is_refused() -> None:
    tokenizer = CharTokenizer(refuses="system")
    prompt = build_prompt(SAMPLE, tokenizer, system="Be brief.")
    assert tokenizer.decode(prompt.token_ids) == "<s>[user]Be brief.\n\n12 times 34?</s>[me]"
    with pytest.raises(DataError, match=r"refuses a question .* user role is not supported"):
        build_prompt(SAMPLE, CharTokenizer(refuses="user"), system="Be brief.")


def test_thinking_is_asked_of_a_template_that_knows_it() -> None:
    tokenizer = CharTokenizer()
    with pytest.raises(DataError, match="no thinking mode"):
        build_prompt(SAMPLE, tokenizer, system="", think=True)
    for template in ("{% if enable_thinking %}", "<think>\n"):
        tokenizer.chat_template = template
        build_prompt(SAMPLE, tokenizer, system="", think=True)
        assert tokenizer.template_arguments["enable_thinking"] is True
    with pytest.raises(DataError, match="no thinking mode"):
        build_prompt(SAMPLE, CharTokenizer(chat=False), system="", think=True)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (CharTokenizer(), "<s>[system]Be brief.</s>[user]1 + 1?</s>[assistant]two</s>[user]12 times 34?</s>[me]"),
        (
            CharTokenizer(refuses="system"),
            "<s>[user]Be brief.\n\n1 + 1?</s>[assistant]two</s>[user]12 times 34?</s>[me]",
        ),
        (
            CharTokenizer(chat=False),
            "<s>Be brief.\n\nProblem: 1 + 1?\n\nSolution:\ntwo\n\nProblem: 12 times 34?\n\nSolution:\n",
        ),
    ],
    ids=["system role", "no system role", "base model"],
)
def test_build_prompt_shows_examples_before_the_question(tokenizer: CharTokenizer, expected: str) -> None:
    example = Sample(id="e", question="1 + 1?", answer="2", trace=(TraceSegment(author=Author.POLICY, text="two"),))
    prompt = build_prompt(SAMPLE, tokenizer, system="Be brief.", examples=[example])
    assert tokenizer.decode(prompt.token_ids) == expected
    assert prompt.shots == 1


@pytest.mark.parametrize(("bos", "adds_eos"), [(BOS, False), (BOS, True), (None, False), (None, True)])
def test_build_prompt_lays_out_a_base_model_in_plain_text(bos: int | None, adds_eos: bool) -> None:
    tokenizer = CharTokenizer(chat=False, bos=bos, adds_eos=adds_eos)
    start = "<s>" if bos else ""
    prompt = build_prompt(SAMPLE, tokenizer, system="Be brief.")
    assert tokenizer.decode(prompt.token_ids) == start + "Be brief.\n\nProblem: 12 times 34?\n\nSolution:\n"
    prompt = build_prompt(SAMPLE, tokenizer, system="")
    assert tokenizer.decode(prompt.token_ids) == start + "Problem: 12 times 34?\n\nSolution:\n"


def test_build_prompt_never_starts_with_two_bos_tokens() -> None:
    class DoubleBos(CharTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
            return [BOS, *super().encode(text, add_special_tokens=add_special_tokens)]

    for chat in (True, False):
        token_ids = build_prompt(SAMPLE, DoubleBos(chat=chat), system="s").token_ids
        assert token_ids.count(BOS) == 1


def test_encode_trace_joins_hints_with_policy_text_and_masks_tool_results() -> None:
    token_ids, loss_mask = encode_trace(SAMPLE, CharTokenizer())
    # Policy "12 is `" + hint "`x``" + policy "`" = "12 is ``x```": the closing fence is one token only if joined.
    before = [*map(ord, "12 is ``x"), PAIR]
    result = [*map(ord, "\n408\n")]
    after = [*map(ord, "Hm: yes, 408."), EOS]
    assert token_ids == (*before, *result, *after)
    assert loss_mask == (True,) * len(before) + (False,) * len(result) + (True,) * len(after)


def test_encode_trace_starts_with_a_hint_at_offset_zero() -> None:
    trace = (TraceSegment(author=Author.POLICY, text="b"),)
    sample = Sample(
        id="a", question="q", answer="1", trace=trace, hints=(Hint(kind=HintKind.FREE, text="a", position=0),)
    )
    assert encode_trace(sample, CharTokenizer()) == ((ord("a"), ord("b"), EOS), (True, True, True))


def test_encode_trace_needs_a_trace_and_an_end_of_turn_token() -> None:
    with pytest.raises(DataError, match="sample b has no trace"):
        encode_trace(Sample(id="b", question="q", answer="1"), CharTokenizer())
    tokenizer = CharTokenizer()
    tokenizer.eos_token_id = None
    with pytest.raises(DataError, match="no end-of-turn token"):
        encode_trace(SAMPLE, tokenizer)
