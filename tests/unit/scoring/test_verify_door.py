import json
import subprocess
import sys
from pathlib import Path

import pytest

import edge_rl
from edge_rl.errors import ConfigError, DataError
from edge_rl.verify import main

DATA = Path(__file__).parents[2] / "data"


def test_verify_is_a_function_and_a_door() -> None:
    assert edge_rl.verify("numeric", r"\boxed{5}", "5").correct is True
    assert edge_rl.verify("numeric", r"\boxed{5.2}", "5", tolerance="0.5").correct is True
    with pytest.raises(ConfigError, match="did you mean 'numeric'"):
        edge_rl.verify("numeri", "5", "5")
    with pytest.raises(DataError, match="kind numeric"):
        edge_rl.verify("numeric", "5", "five")


def test_import_is_light() -> None:
    names = "('torch', 'transformers', 'sympy')"
    code = f"import edge_rl, edge_rl.scoring.scorer, sys; print([m for m in {names} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_cases_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "a", "kind": "numeric", "gold": "5", "prediction": "5", "expected": True},
        {"id": "b", "kind": "numeric", "gold": "5", "prediction": "5", "expected": False},
        {"id": "c", "kind": "numeric", "gold": "5", "prediction": "6", "expected": True},
        {"id": "d", "kind": "numeric", "gold": "five", "prediction": "5", "expected": True},
    ]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert main(["--cases", str(file), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["cases"] == 4
    assert [row["id"] for row in report["false_accepts"]] == ["b"]
    assert [row["id"] for row in report["false_rejects"]] == ["c"]
    assert [row["id"] for row in report["unjudged"]] == ["d"]


def test_one_completion_and_the_mutations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "numeric", "--gold", "5", "--completion", "The answer is 5."]) == 0
    assert "right" in capsys.readouterr().out
    assert main(["--kind", "numeric", "--gold", "5", "--completion", "6"]) == 1
    assert main(["--kind", "numeric", "--gold", "5", "--mutations"]) == 0
    assert "200 cases: 0 false accepts" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [[], ["--cases", "nowhere.jsonl"], ["--kind", "numeric", "--gold", "5", "--completion", "5", "--options", "[]"]],
)
def test_a_users_mistake_is_an_edge_error(argv: list[str]) -> None:
    with pytest.raises((ConfigError, DataError)):
        main(argv)
