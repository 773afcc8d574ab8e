import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from edge_rl.data.tasks import FORMS, SLOT, WORDINGS, Wording, draw_problem
from edge_rl.errors import DataError

ALL_WORDINGS = [wording for pool in WORDINGS.values() for wording in pool]

# Each row was worked out by hand.
HAND_COMPUTED: dict[str, tuple[dict[str, Any], float]] = {
    "product": ({"a": 12, "b": 34}, 408),
    "price": ({"a": 4, "p": 2.25}, 9.0),
    "product_add": ({"a": 12, "b": 34, "c": 5}, 413),
    "leftover": ({"a": 100, "b": 3, "c": 7}, 79),
    "two_products": ({"a": 2, "b": 3, "c": 5, "d": 7}, 41),
    "sum_list": ({"a": 1, "b": 20, "c": 300, "d": 4000}, 4321),
    "in_out": ({"a": 100, "b": 20, "c": 3}, 117),
    "remainder": ({"a": 100, "b": 7}, 2),
    "quotient": ({"a": 100, "b": 7}, 14),
    "power": ({"a": 13, "b": 3}, 2197),
    "doubling": ({"a": 3, "b": 5}, 96),
    "tripling": ({"a": 2, "b": 4}, 162),
    "percent": ({"a": 250, "b": 14}, 35.0),
    "discount": ({"a": 200, "b": 15}, 170.0),
    "raise": ({"a": 200, "b": 15}, 230.0),
    "unit_price": ({"a": 7, "b": 4, "c": 10}, 17.5),
    "rate": ({"a": 6, "b": 4, "c": 10}, 15.0),
    "days": ({"y": 2024, "m1": 2, "d1": 28, "m2": 3, "d2": 1}, 2),  # 2024 is a leap year
    "count_multiples": ({"a": 10, "b": 30, "c": 5}, 5),  # 10, 15, 20, 25, 30
    "sum_range": ({"a": 3, "b": 6}, 18),
    "average": ({"a": 1, "b": 2, "c": 3, "d": 5}, 2.75),
    "triple_product": ({"a": 2, "b": 3, "c": 5}, 30),
    "minutes": ({"a": 2, "b": 5}, 125),
    "dozens": ({"a": 2, "b": 5}, 29),
    "weeks": ({"a": 2, "b": 5}, 19),
    "hours": ({"a": 2, "b": 5}, 53),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_form_solves_a_hand_computed_case(form: str) -> None:
    values, expected = HAND_COMPUTED[form]
    assert FORMS[form].solve(values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("wording", ALL_WORDINGS, ids=lambda wording: wording.id)
def test_draw_problem_is_exact_and_repeatable(wording: Wording) -> None:
    for seed in range(20):
        problem = draw_problem(wording, seed)
        assert problem == draw_problem(wording, seed)
        assert re.fullmatch(r"[1-9]\d*|\d+\.\d?[1-9]", problem.answer)
        exact = {
            name: Fraction(value) if isinstance(value, Decimal) else value for name, value in problem.values.items()
        }
        assert float(problem.answer) == pytest.approx(float(FORMS[wording.form].solve(exact)), abs=1e-9)
        assert problem.answer not in problem.numbers
        assert "{" not in problem.question + problem.code
        assert all(number in problem.question for number in problem.numbers)
        assert 7 <= len(problem.question.split()) <= 45
        assert problem.code.count("print(") == 1
        if FORMS[wording.form].is_whole:
            assert "." not in problem.answer
    assert draw_problem(wording, 0).numbers != draw_problem(wording, 1).numbers


@pytest.mark.parametrize("wording", ALL_WORDINGS, ids=lambda wording: wording.id)
def test_wording_draws_each_slot_that_its_code_needs(wording: Wording) -> None:
    drawn = [name for name, spec in SLOT.findall(wording.text) if spec]
    needed = set(re.findall(r"\{(\w+)\}", FORMS[wording.form].code))
    assert len(drawn) == len(set(drawn))
    assert set(drawn) - {"x"} == needed


def test_every_pool_covers_every_skill() -> None:
    skills = {form.skill for form in FORMS.values()}
    assert len(skills) == 18
    assert all({wording.skill for wording in pool} == skills for pool in WORDINGS.values())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("leftover", "{a:1-2} less {b:11-12} times {c:11-12}"),  # never positive
        ("product", "{a:12-12} times {b:1-1}"),  # the answer stands in the question
        ("product", "{a:30-30} times {b:11-99}"),  # a round number
        ("unit_price", "{a:1-1} for {c:17-17}, {b:8-8}"),  # 2.125: three decimals
        ("rate", "{a:1-1} for {c:17-17}, {b:2-2}"),  # 8.5 things
    ],
)
def test_draw_problem_says_when_a_wording_is_impossible(form: str, text: str) -> None:
    wording = Wording(id="never", form=form, text=text)
    with pytest.raises(DataError, match="wording never: no draw of 2000"):
        draw_problem(wording, 0)
