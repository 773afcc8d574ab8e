import pytest

from edge_rl.errors import DataError
from edge_rl.scoring.instructions import count_sentences, count_words, follows


@pytest.mark.parametrize(
    ("text", "instruction", "expected"),
    [
        ("one two three", {"id": "length_constraints:number_words", "relation": "at least", "num_words": 3}, True),
        ("one two three", {"id": "length_constraints:number_words", "relation": "less than", "num_words": 3}, False),
        ("One. Two!", {"id": "length_constraints:number_sentences", "relation": "exactly", "num_sentences": 2}, True),
        ("a\n***\nb", {"id": "length_constraints:number_paragraphs", "num_paragraphs": 2}, True),
        (
            "A cat.\n\nIt ran.",
            {
                "id": "length_constraints:nth_paragraph_first_word",
                "num_paragraphs": 2,
                "nth_paragraph": 2,
                "first_word": "it",
            },
            True,
        ),
        ("a dog", {"id": "keywords:existence", "keywords": ["dog", "day"]}, False),
        ("hotdog", {"id": "keywords:forbidden_words", "forbidden_words": ["dog"]}, True),
        ("knot a knot", {"id": "keywords:frequency", "relation": "at least", "keyword": "knot", "frequency": 2}, True),
        (
            "jjj",
            {"id": "keywords:letter_frequency", "let_relation": "at least", "letter": "J", "let_frequency": 3},
            True,
        ),
        ("hi [name]", {"id": "detectable_content:number_placeholders", "num_placeholders": 1}, True),
        ("x\nP.P.S bye", {"id": "detectable_content:postscript", "postscript_marker": "P.P.S"}, True),
        ("* a\n* b", {"id": "detectable_format:number_bullet_lists", "num_bullets": 2}, True),
        ("*a* **b**", {"id": "detectable_format:number_highlighted_sections", "num_highlights": 2}, True),
        (
            "SECTION 1\nx\nSECTION 2\ny",
            {"id": "detectable_format:multiple_sections", "section_spliter": "SECTION", "num_sections": 2},
            True,
        ),
        ('```json\n{"a": 1}\n```', {"id": "detectable_format:json_format"}, True),
        ("{a: 1}", {"id": "detectable_format:json_format"}, False),
        ("<<Rome>>", {"id": "detectable_format:title"}, True),
        ("a ****** b", {"id": "combination:two_responses"}, True),
        ("Say hi. Hi", {"id": "combination:repeat_prompt", "prompt_to_repeat": "Say hi."}, True),
        ("Bye now", {"id": "startend:end_checker", "end_phrase": "now"}, True),
        ('"quoted"', {"id": "startend:quotation"}, True),
        ("ALL CAPS", {"id": "change_case:english_capital"}, True),
        ("all low", {"id": "change_case:english_lowercase"}, True),
        (
            "A BB c",
            {"id": "change_case:capital_word_frequency", "capital_relation": "at least", "capital_frequency": 2},
            True,
        ),
        ("no, comma", {"id": "punctuation:no_comma"}, False),
        ("नमस्ते दुनिया", {"id": "language:response_language", "language": "hi"}, True),
        ("hello", {"id": "language:response_language", "language": "hi"}, False),
        ("hello", {"id": "language:response_language", "language": "de"}, None),
    ],
)
def test_an_instruction_is_followed_or_not(text: str, instruction: dict[str, object], expected: bool | None) -> None:
    assert follows(text, instruction) is expected


def test_counts_are_of_words_and_sentences() -> None:
    assert count_words("It's well-known: 3 words") == 4
    assert count_sentences("One. Two? Three") == 3


def test_unknown_instructions_and_missing_arguments_are_errors() -> None:
    with pytest.raises(DataError, match="not known"):
        follows("x", {"id": "nonsense"})
    with pytest.raises(DataError, match="lacks its argument"):
        follows("x", {"id": "keywords:existence"})
