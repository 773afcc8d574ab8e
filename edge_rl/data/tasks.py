"""Procedural questions that one line of Python settles: pure functions of a wording and a seed. Knows no model.

A form is a kind of computation (its code and an independent way to the answer); a wording tells it as a story with
numbers to draw. Answers are exact: a draw whose answer Python's floats would not print exactly is thrown away.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

from edge_rl.data import wordings
from edge_rl.errors import DataError
from edge_rl.types import derive_seed

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MAX_DRAWS = 2000
"""Draws until a wording counts as impossible."""
SLOT = re.compile(r"\{(\w+)(?::([^}]+))?\}")

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One kind of computation."""

    skill: str
    code: str
    """The solution; `{a}` stands for a drawn value."""
    solve: Callable[[Values], Any]
    """The answer, computed apart from `code`; exact when it is given fractions."""
    is_whole: bool = False
    """Whether it counts things, so that a fraction makes no sense."""


FORMS: dict[str, Form] = {
    "product": Form(skill="product", code="print({a} * {b})", solve=lambda v: v["a"] * v["b"]),
    "price": Form(skill="unit_price", code="print({a} * {p})", solve=lambda v: v["a"] * v["p"]),
    "product_add": Form(skill="product_add", code="print({a} * {b} + {c})", solve=lambda v: v["a"] * v["b"] + v["c"]),
    "leftover": Form(skill="leftover", code="print({a} - {b} * {c})", solve=lambda v: v["a"] - v["b"] * v["c"]),
    "two_products": Form(
        skill="two_products",
        code="print({a} * {b} + {c} * {d})",
        solve=lambda v: v["a"] * v["b"] + v["c"] * v["d"],
    ),
    "sum_list": Form(
        skill="sum_list", code="print({a} + {b} + {c} + {d})", solve=lambda v: v["a"] + v["b"] + v["c"] + v["d"]
    ),
    "in_out": Form(skill="in_out", code="print({a} + {b} - {c})", solve=lambda v: v["a"] + v["b"] - v["c"]),
    "remainder": Form(
        skill="remainder", code="print({a} % {b})", solve=lambda v: v["a"] - v["b"] * divmod(v["a"], v["b"])[0]
    ),
    "quotient": Form(skill="quotient", code="print({a} // {b})", solve=lambda v: divmod(v["a"], v["b"])[0]),
    "power": Form(skill="power", code="print({a} ** {b})", solve=lambda v: _multiply([v["a"]] * v["b"])),
    "doubling": Form(skill="power", code="print({a} * 2 ** {b})", solve=lambda v: _multiply([v["a"], *[2] * v["b"]])),
    "tripling": Form(skill="power", code="print({a} * 3 ** {b})", solve=lambda v: _multiply([v["a"], *[3] * v["b"]])),
    "percent": Form(skill="percent", code="print({a} * {b} / 100)", solve=lambda v: v["a"] * v["b"] / 100),
    "discount": Form(
        skill="percent_change",
        code="print({a} * (100 - {b}) / 100)",
        solve=lambda v: (v["a"] * 100 - v["a"] * v["b"]) / 100,
    ),
    "raise": Form(
        skill="percent_change",
        code="print({a} * (100 + {b}) / 100)",
        solve=lambda v: (v["a"] * 100 + v["a"] * v["b"]) / 100,
    ),
    "unit_price": Form(skill="unit_price", code="print({a} * {c} / {b})", solve=lambda v: v["a"] * v["c"] / v["b"]),
    "rate": Form(
        skill="unit_price", code="print({a} * {c} / {b})", solve=lambda v: v["a"] * v["c"] / v["b"], is_whole=True
    ),
    "days": Form(
        skill="days",
        code="from datetime import date\nprint((date({y}, {m2}, {d2}) - date({y}, {m1}, {d1})).days)",
        solve=lambda v: (
            date(v["y"], v["m2"], v["d2"]).timetuple().tm_yday - date(v["y"], v["m1"], v["d1"]).timetuple().tm_yday
        ),
    ),
    "count_multiples": Form(
        skill="count_multiples",
        code="print(sum(n % {c} == 0 for n in range({a}, {b} + 1)))",
        solve=lambda v: v["b"] // v["c"] - (v["a"] - 1) // v["c"],
    ),
    "sum_range": Form(
        skill="sum_range",
        code="print(sum(range({a}, {b} + 1)))",
        solve=lambda v: (v["a"] + v["b"]) * (v["b"] - v["a"] + 1) // 2,
    ),
    "average": Form(
        skill="average",
        code="print(({a} + {b} + {c} + {d}) / 4)",
        solve=lambda v: (v["a"] + v["b"] + v["c"] + v["d"]) / 4,
    ),
    "triple_product": Form(
        skill="triple_product", code="print({a} * {b} * {c})", solve=lambda v: v["a"] * v["b"] * v["c"]
    ),
    "minutes": Form(skill="units", code="print({a} * 60 + {b})", solve=lambda v: v["a"] * 60 + v["b"]),
    "dozens": Form(skill="units", code="print({a} * 12 + {b})", solve=lambda v: v["a"] * 12 + v["b"]),
    "weeks": Form(skill="units", code="print({a} * 7 + {b})", solve=lambda v: v["a"] * 7 + v["b"]),
    "hours": Form(skill="units", code="print({a} * 24 + {b})", solve=lambda v: v["a"] * 24 + v["b"]),
}
"""To add one: a line here, wordings of it in wordings.py, and a hand-computed row in tests/unit/data/test_tasks.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One way to tell a form as a question."""

    id: str
    form: str
    text: str

    @property
    def skill(self) -> str:
        """Skill of its form."""
        return FORMS[self.form].skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A wording with its numbers drawn."""

    wording: Wording
    values: Values
    """Slot name -> what was drawn."""
    question: str
    answer: str
    """Plain number: digits, at most two decimals."""
    code: str
    """Solution that prints the answer."""
    numbers: tuple[str, ...]
    """Numbers and months as they stand in the question, in order."""


def _pool(name: str, entries: tuple[tuple[str, str], ...]) -> tuple[Wording, ...]:
    return tuple(
        Wording(id=f"{name}-{index:02d}-{form}", form=form, text=text)
        for index, (form, text) in enumerate(entries, start=1)
    )


WORDINGS: dict[str, tuple[Wording, ...]] = {
    "hinted": _pool("hinted", wordings.HINTED),
    "plain": _pool("plain", wordings.PLAIN),
    "validation": _pool("validation", wordings.VALIDATION),
    "test": _pool("test", wordings.TEST),
}
"""Pool -> its wordings. Training may draw from `hinted` and `plain` only."""


def draw_problem(wording: Wording, seed: int) -> Problem:
    """Return the problem that this seed gives; the same arguments always give the same one.

    Raises: DataError if the ranges of the wording allow no exact positive answer.
    """
    random = Random(derive_seed(seed, "problem", wording.id))
    for _ in range(MAX_DRAWS):
        problem = _try_draw(wording, random)
        if problem is not None:
            return problem
    raise DataError(f"wording {wording.id}: no draw of {MAX_DRAWS} has an exact positive answer; widen its ranges")


def _try_draw(wording: Wording, random: Random) -> Problem | None:
    values: dict[str, Any] = {}
    shown: list[str] = []

    def fill(match: re.Match[str]) -> str:
        name, spec = match.groups()
        if spec:
            values[name], text = _draw_value(spec, random)
            shown.append(text)
            return text
        return str(values[name])

    question = SLOT.sub(fill, wording.text)
    form = FORMS[wording.form]
    answer = _exact_answer(form, values)
    if answer is None or answer in shown:  # an answer that stands in the question could be copied
        return None
    if form.skill != "days" and any(re.fullmatch(r"\d+0", text) for text in shown):  # round numbers need no tool
        return None
    return Problem(
        wording=wording,
        values=values,
        question=question,
        answer=answer,
        code=form.code.format(**values),
        numbers=tuple(shown),
    )


def _draw_value(spec: str, random: Random) -> tuple[Any, str]:
    """Return a drawn value as code needs it, and as the question shows it."""
    if spec == "month":
        month = random.randint(1, 12)
        return month, MONTHS[month - 1]
    low, _, high = spec.partition("-")
    if "." not in spec:
        value = random.randint(int(low), int(high))
        return value, str(value)
    steps = random.randint(int(Decimal(low) * 20), int(Decimal(high) * 20))
    return Decimal(steps) / 20, f"{Decimal(steps) / 20:.2f}"


def _exact_answer(form: Form, values: Values) -> str | None:
    """Return the answer as a plain number, or None where it is no exact positive number of at most two decimals."""
    printed = form.solve(
        {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}
    )
    if printed <= 0:
        return None
    if isinstance(printed, int):
        return str(printed)
    exact = Fraction(form.solve({name: Fraction(value) for name, value in values.items()}))
    if exact.denominator != 1 and (form.is_whole or (exact * 100).denominator != 1):
        return None
    if Fraction(repr(printed)) != exact:
        return None
    return str(exact.numerator) if exact.denominator == 1 else f"{float(exact):.2f}".rstrip("0")


def _multiply(factors: list[Any]) -> Any:
    product = 1
    for factor in factors:
        product *= factor
    return product
