import pytest

from edge_rl.errors import DataError
from edge_rl.sandbox import make_interpreter
from edge_rl.scoring.candidates import free_names, run_tests
from edge_rl.scoring.verifiers.code import find_program
from edge_rl.types import Interpreter

TESTS = ("assert set(unique([1, 1, 2])) == set((1, 2))", "assert unique([]) == []")
RIGHT = "def unique(items):\n    return sorted(set(items))"


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return make_interpreter(timeout_s=2.0)


def test_a_right_program_passes(interpreter: Interpreter) -> None:
    assert run_tests(RIGHT, TESTS, interpreter).passed is True


@pytest.mark.parametrize(
    "program",
    [
        "def unique(items):\n    return [1]",
        "import sys\nsys.exit(0)",
        "import os\nprint('all tests passed')\nos._exit(0)",
        "class Same:\n    def __eq__(self, other): return True\n    def __iter__(self): return iter([])\n"
        "def unique(items): return Same()",
        "def set(items): return 1\ndef unique(items): return 1",
        "import builtins\nbuiltins.set = lambda items: 0\ndef unique(items): return 0",
        'def unique(items):\n    print(\'EDGE_REPLY ["pass", ""]\')\n    raise SystemExit',
        "def unique(items):\n    raise AssertionError",
        "def unique(items):\n    return unique(items)",
        "def other(items): return items",
        "def unique(",
    ],
)
def test_a_wrong_or_cheating_program_fails(program: str, interpreter: Interpreter) -> None:
    assert run_tests(program, TESTS, interpreter).passed is False


def test_only_the_reference_may_name_a_function_like_a_builtin(interpreter: Interpreter) -> None:
    program, tests = "def sum(items): return 7", ("assert sum([1]) == 7",)
    assert run_tests(program, tests, interpreter, reference=program).passed is True
    assert run_tests(program, tests, interpreter).passed is False
    reference = "import sys\ndef f(): return 1"
    assert (
        run_tests("def f(): return 1", ("assert f() < sys.maxsize",), interpreter, reference=reference).passed is True
    )


def test_arguments_that_are_changed_in_place_are_seen(interpreter: Interpreter) -> None:
    tests = ("x = [3, 1]\norder(x)\nassert x == [1, 3]",)
    assert run_tests("def order(items): items.sort()", tests, interpreter).passed is True


def test_objects_of_the_program_can_be_passed_back(interpreter: Interpreter) -> None:
    program = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\ndef add(pair): return pair.a + pair.b"
    assert run_tests(program, ("assert add(Pair(2, 3)) == 5",), interpreter).passed is True


def test_exceptions_reach_the_test(interpreter: Interpreter) -> None:
    test = "try:\n    fails()\n    assert False\nexcept ValueError:\n    pass"
    assert run_tests("def fails(): raise ValueError('x')", (test,), interpreter).passed is True


def test_free_names_are_the_programs() -> None:
    assert free_names(["import math\nassert math.isclose(area(2), 4)\nfor x in [1]: check_it(x)"]) == [
        "area",
        "check_it",
    ]
    with pytest.raises(DataError, match="no Python"):
        free_names(["assert ("])


def test_the_last_block_that_defines_something_is_the_program() -> None:
    text = "```python\ndef f(): return 1\n```\nand\n```python\ndef f(): return 2\n```\nrun\n```\nf()\n```"
    assert find_program(text) == "def f(): return 2\n"
    assert find_program("```python\ndef f(") == ""
