"""Recipes: what lies underneath what, what a mistake says, and what each says about itself."""

import json
from pathlib import Path

import pytest

from edge_rl.config import About, about_recipe, build, load_recipe, recipe_names, resolve, to_toml
from edge_rl.errors import ConfigError
from edge_rl.learning.advantages import get_advantage
from edge_rl.learning.credit import get_credit
from edge_rl.learning.losses import get_loss
from edge_rl.scoring.group_rewards import RewardContext, make_reward
from edge_rl.train import main


def _write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_and_says_what_it_is(name: str) -> None:
    config = resolve(name, {})
    assert config.recipe == name
    about = about_recipe(name)
    assert about is not None
    assert "arXiv:" in about.source
    get_loss(config.learning.loss)
    get_advantage(config.learning.advantage)
    make_reward(RewardContext(samples={}, settings=config.scoring))
    get_credit(config.learning)
    assert config.learning.max_tokens_normaliser >= config.rollout.max_tokens or config.learning.loss != "dr_grpo"
    assert build(load_recipe(name)) == config


def test_a_recipe_lies_on_its_base_key_by_key(tmp_path: Path) -> None:
    _write(tmp_path, "lower.toml", "[learning]\nlearning_rate = 1e-4\nnum_steps = 3\n[rollout]\ngroup_size = 4\n")
    middle = _write(tmp_path, "middle.toml", f"base = '{tmp_path}/lower.toml'\n[learning]\nnum_steps = 5\n")
    upper = _write(tmp_path, "upper.toml", f"base = '{middle}'\n[learning]\nepochs = 2\n")
    config = resolve(upper, {}, ["rollout.prompts_per_step=7"])
    assert config.recipe == "upper"
    assert (config.learning.learning_rate, config.learning.num_steps, config.learning.epochs) == (1e-4, 5, 2)
    assert (config.rollout.group_size, config.rollout.prompts_per_step) == (4, 7)


def test_a_recipe_does_not_inherit_what_its_base_says_about_itself(tmp_path: Path) -> None:
    mine = _write(tmp_path, "mine.toml", "base = 'grpo'\n")
    assert about_recipe(mine) is None
    assert resolve(mine, {}).rollout == resolve("grpo", {}).rollout
    told = _write(tmp_path, "told.toml", "base = 'grpo'\n[about]\npurpose = 'p'\nsource = 's'\n")
    assert about_recipe(told) == About(purpose="p", source="s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base = 'self.toml'", r"its base leads back to it: self.toml -> self.toml"),
        ("base = 'other.toml'", r"self.toml -> other.toml -> self.toml"),
        ("base = 3", r"base = 3, but it names another recipe"),
        ("base = 'grpoo'", r"'grpoo' does not exist; did you mean 'grpo'"),
        ("base = 'none.toml'", r"recipe file none.toml does not exist"),
        ("base = ", r"no valid TOML"),
    ],
)
def test_a_wrong_base_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, "self.toml", text)
    _write(tmp_path, "other.toml", "base = 'self.toml'")
    with pytest.raises(ConfigError, match=message):
        load_recipe("self.toml")


def test_a_wrong_about_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs purpose and source.* source: field required"):
        about_recipe(_write(tmp_path, "mine.toml", "[about]\npurpose = 'p'\n"))


def test_a_resolved_recipe_needs_no_base(tmp_path: Path) -> None:
    config = resolve("dapo", {})
    assert resolve(_write(tmp_path, "whole.toml", to_toml(config)), {}) == config


def test_list_recipes_prints_every_recipe_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-recipes"]) == 0
    table = capsys.readouterr().out
    assert main(["--list-recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == recipe_names()
    assert all(name in table for name in recipe_names())
    assert all(row["purpose"] and row["source"] for row in rows)
