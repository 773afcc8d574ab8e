import subprocess
import sys
from collections.abc import Sequence

import pytest

from edge_rl import cli
from edge_rl.errors import ConfigError


def test_mistake_is_one_line_and_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    def door(argv: Sequence[str] | None) -> int:
        raise ConfigError("model.rank is 0;\n  use 1 or more")

    assert cli.run_door(door, []) == 2
    assert capsys.readouterr().err == "error: model.rank is 0; use 1 or more\n"


def test_status_of_the_door_is_passed_on() -> None:
    assert cli.run_door(lambda argv: len(argv or ()), ["a"]) == 1


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def door(argv: Sequence[str] | None) -> int:
        raise KeyboardInterrupt

    assert cli.run_door(door, []) == 130
    assert "stopped" in capsys.readouterr().err


def test_bug_keeps_its_traceback() -> None:
    def door(argv: Sequence[str] | None) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.run_door(door, [])


def test_unknown_door_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


def test_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli.importlib, "import_module", absent)
    assert cli.main(["train"]) == 2
    assert "pip install 'edge_rl[train,export]'" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), ([], 2), (["--version"], 0)])
def test_help_lists_the_doors(arguments: list[str], status: int) -> None:
    result = subprocess.run([sys.executable, "-m", "edge_rl", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == status
    if arguments != ["--version"]:
        assert all(door in result.stdout for door in cli.DOORS)
