import json
from pathlib import Path

import pytest

from edge_rl.interpret import main


def test_door_runs_code_and_tells_its_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--code", "print(6 * 7)"]) == 0
    assert capsys.readouterr().out == "42\n"
    assert main(["--code", "1 / 0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError: division by zero"


def test_door_wants_one_thing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "exactly one of" in capsys.readouterr().err


def test_door_names_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--selftest", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["default"] in found["backends"]


def test_door_fails_where_a_case_is_wrong_and_prints_no_control_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    row = {"id": "x", "code": "raise ValueError('\x1b[2J')", "expect": "ok", "stdout_contains": "", "why": ""}
    path.write_text(json.dumps(row), encoding="utf-8")
    assert main(["--cases", str(path)]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and "0 of 1" in out
    assert "\x1b" not in out


def test_unsafe_interpreter_shows_a_banner(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="UNSAFE"):
        assert main(["--code", "print(1)", "--unsafe-interpreter"]) == 0
    assert "UNSAFE INTERPRETER" in capsys.readouterr().err
