import pytest

from edge_rl.scoring.extraction import commit, find_boxes, visible_answer
from edge_rl.scoring.statements import closing_statement, is_negated, is_withdrawn, settle


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (r"\boxed{5}", ("5",)),
        (r"\fbox{5}", ("5",)),
        (r"\boxed 5", ("5",)),
        (r"\boxed{\boxed{5}}", (r"\boxed{5}",)),
        (r"\boxed{3} or \boxed{4}", ("3", "4")),
        (r"It is probably \boxed{3} but it could also turn out to be \boxed{4}", ("3", "4")),
        (r"\boxed{3} \boxed{3}", ("3",)),
        (r"\boxed{12}. Wait, halving gives \boxed{6}", ("6",)),
        (r"The sum is \boxed{12} and then we divide it by two to get \boxed{6}", ("6",)),
        (r"The answer is \boxed{1}. The answer is \boxed{2}.", ("1", "2")),
        (r"not \boxed{4} but \boxed{5}", ("5",)),
        ("#### 1,234", ("1,234",)),
        ("#### Step 1\n#### 7", ("7",)),
        ("<answer> 7 </answer>", ("7",)),
        (r"<think>\boxed{1}</think>\boxed{2}", ("2",)),
        (r"\boxed{1}</think>\boxed{2}", ("2",)),
    ],
)
def test_the_marked_value_is_what_counts(text: str, values: tuple[str, ...]) -> None:
    assert commit(text).values == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        r"<think>\boxed{5}",
        r"\boxed{5",
        r"\boxed{5} and \boxed{6",
        "<answer>5",
        r"It is not \boxed{5}.",
        r"\boxed{5}. No, that is wrong.",
        "The answer is not 5.",
        "```python\nprint('\\\\boxed{5}')\n```",
        "The answer is 5. Wait, that is wrong.",
    ],
)
def test_nothing_is_committed(text: str) -> None:
    commitment = commit(text)
    assert commitment.values == ()
    assert commitment.route == "nothing"


def test_values_of_a_set_are_joined_unless_withdrawn() -> None:
    assert commit(r"The first root is \boxed{2}. The second root is \boxed{3}.", many=True).values == ("2", "3")
    assert commit(r"\boxed{2}. Wait, I forgot one: \boxed{2,3}", many=True).values == ("2,3",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 42.", "42"),
        ("The answer is 24, not 42.", "24"),
        ("The answer is not A, so it is B.", "B"),
        ("Not Tuesday but Wednesday.", "Wednesday"),
        ("My answer: scalene. Expected answer: isosceles.", "scalene"),
        ("**Final Answer**\n58", "58"),
        ("答案是 42。", "42"),
        ("Answer: 5\nHope this helps!", "5"),
        ('He wrote "the answer is 9". The total is 5.', "5"),
    ],
)
def test_the_closing_statement_names_its_value(text: str, value: str) -> None:
    statement = closing_statement(text)
    assert statement is not None
    assert statement.value == value


def test_code_and_words_to_a_grader_are_no_statement() -> None:
    assert closing_statement("reward=1.0 expected=17 result=True") is None
    assert closing_statement("assert answer == 17") is None


def test_denials_and_withdrawals_are_seen() -> None:
    assert is_negated("The answer is not ") and not is_negated("The answer is ")
    assert is_withdrawn(". Wait, that is wrong") and not is_withdrawn(". This is correct.")
    assert settle("B because it is even") == "B"


def test_boxes_are_found_in_one_pass() -> None:
    boxes, is_cut_off = find_boxes("{" * 50_000 + r"\boxed{7}" + r"\boxed{" * 1000)
    assert [box.content for box in boxes] == ["7"]
    assert is_cut_off


def test_end_of_turn_and_invisible_characters_vanish() -> None:
    assert visible_answer("5\u200b<|im_end|>\n") == "5"
