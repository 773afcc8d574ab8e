"""Mutations of the exit statuses."""

TEST = "tests/unit/test_cli.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (
        "edge_rl/cli.py",
        "file=sys.stderr)\n        return 2\n    except",
        "file=sys.stderr)\n        return 1\n    except",
        TEST,
    ),
    ("edge_rl/cli.py", "return door(argv)", "return 0", TEST),
    ("edge_rl/cli.py", "except EdgeRLError as error", "except Exception as error", TEST),
    ("edge_rl/cli.py", "return 130", "return 0", TEST),
]
