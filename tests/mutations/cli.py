"""Mutations of the exit statuses, and of how settings lie on each other."""

TEST = "tests/unit/test_cli.py"
CONFIG, TEST_CONFIG = "edge_rl/config.py", "tests/unit/test_config.py"

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
    (
        CONFIG,
        "_overlay(cast(dict[str, Any], under), cast(dict[str, Any], value)) if both else value",
        "value",
        TEST_CONFIG,
    ),
    (CONFIG, "return _overlay(below, own) |", "return _overlay(own, below) |", TEST_CONFIG),
    (CONFIG, '| {"about": own.get("about")}', "", TEST_CONFIG),
    (CONFIG, "    if name in above:\n", "    if False:\n", TEST_CONFIG),
    (CONFIG, "_read_recipe(base, (*above, name))", "_read_recipe(base, (name,))", TEST_CONFIG),
    (CONFIG, 'own.setdefault("recipe", Path(name).stem)', "pass", TEST_CONFIG),
]
