from pathlib import Path

import pytest

from edge_rl.errors import DataError
from edge_rl.sandbox.escape import Case, Finding, read_cases, summarise
from edge_rl.types import Execution, ExecutionStatus


def finding(
    expect: str, status: str, *, stdout: str = "", why: str = "", contains: str = "", left_over: tuple[str, ...] = ()
) -> Finding:
    case = Case(id="a", code="", expect=ExecutionStatus(expect), stdout_contains=contains, why=why)
    return Finding(case=case, execution=Execution(status=ExecutionStatus(status), stdout=stdout), left_over=left_over)


@pytest.mark.parametrize(
    ("expect", "status", "is_right"),
    [
        ("ok", "ok", True),
        ("ok", "error", False),
        ("ok", "truncated", False),
        ("error", "denied", False),
        ("timeout", "timeout", True),
        ("denied", "error", True),  # any failing status
        ("denied", "denied", True),
        ("denied", "timeout", True),
        ("denied", "ok", False),
        ("denied", "truncated", False),
    ],
)
def test_finding_is_right_as_labelled(expect: str, status: str, is_right: bool) -> None:
    assert finding(expect, status).is_right is is_right


def test_finding_accepts_a_denial_where_the_label_does() -> None:
    assert finding("error", "denied", why="segfault (denied is also right)").is_right


def test_finding_needs_the_expected_output() -> None:
    assert not finding("ok", "ok", stdout="5", contains="6").is_right


def test_breach_and_left_over_process_are_never_right() -> None:
    assert finding("denied", "error", stdout="BREACH").is_breach
    assert finding("denied", "error", left_over=("12 sh",)).is_breach
    assert not finding("denied", "error", stdout="BREACH").is_right


def test_summarise_counts() -> None:
    found = [finding("ok", "ok"), finding("ok", "error"), finding("denied", "ok", stdout="BREACH")]
    assert summarise(found) == {"rows": 3, "right": 1, "wrong": ["a", "a"], "breaches": ["a"]}


def test_read_cases_names_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('\n{"id": "a", "expect": "fine"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"cases\.jsonl:2"):
        read_cases(path)
    with pytest.raises(DataError, match="does not exist"):
        read_cases(tmp_path / "none.jsonl")
