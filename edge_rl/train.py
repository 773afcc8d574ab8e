"""Train an adapter, prove it on held-out questions, export it: `python -m edge_rl.train --model qwen-1.5b`.

The module itself can be called: `edge_rl.train(config)` is its function `train`.
"""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any, Literal

import tyro

from edge_rl.cli import run_door
from edge_rl.config import Config, about_recipe, recipe_names, resolve

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train an adapter by GRPO, prove it on held-out questions, export it. The same command resumes a run."""

    recipe: str = "default"
    """Name of a recipe, or a TOML file."""
    model: str | None = None
    """Alias (smollm2-135m, qwen-1.5b, ...), hub id, or local folder."""
    data: str | None = None
    """JSONL of samples."""
    name: str | None = None
    """Folder of the run under runs/."""
    seed: int | None = None
    """Every random choice derives from it."""
    steps: int | None = None
    """Optimizer steps of the reinforcement stage."""
    warm_start: Literal["sft", "none"] | None = None
    """Fine-tune on the hinted traces first, or not."""
    think: Literal["off", "on"] | None = None
    """Thinking mode of the model's chat template."""
    control: Literal["random", "format"] | None = None
    """Train on coin flips, or on the format alone, to see what a gain is worth; measurements stay true."""
    allow_large: bool = False
    """Accept a model of more than 3B parameters."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """section.key=value, any setting of the tree; may be repeated."""
    rollouts_to: Path | None = None
    """Only write groups of rollouts into this folder, for --rollouts-from."""
    rollouts_from: Path | None = None
    """Train on the groups in this folder instead of collecting some."""
    groups: int = 0
    """With --rollouts-to: how many; 0 = as many as --rollouts-from takes before they are too old."""
    dry_run: bool = False
    """Print the plan (settings, memory, tokens, minutes) and stop; nothing is downloaded."""
    list_recipes: bool = False
    """Print the recipes and stop."""
    json: bool = False
    """Print the result as JSON."""


def train(
    config: Config, *, rollouts_to: Path | None = None, rollouts_from: Path | None = None, num_groups: int = 0
) -> Path:
    """Run a configuration from where it stands to its report; return the run's folder.

    With `rollouts_to`, only write `num_groups` groups (0: as many as will be taken) into that folder; with
    `rollouts_from`, train on such groups.
    Raises: EdgeRLError for what a user can mend; KeyboardInterrupt when stopped (the run is saved).
    """
    # heavy imports: a dry run and a mistake in the settings should not wait for them
    from edge_rl.pipeline.proof import Decoupled, train_and_prove

    decoupled = Decoupled(write_to=rollouts_to, read_from=rollouts_from, num_groups=num_groups)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        return train_and_prove(config, on_interrupt=_stop_on_interrupt, decoupled=decoupled)
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                assert handler is not None, "the handlers of this process are Python's own"
                signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.train`."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(TrainArguments, args=argv, prog="python -m edge_rl.train")
    if arguments.list_recipes:
        _print_recipes(as_json=arguments.json)
        return 0
    config = _resolve(arguments)
    if arguments.dry_run:
        from edge_rl.pipeline.plan import make_plan, plan_text

        plan = make_plan(config)
        print(json.dumps(plan, indent=2) if arguments.json else plan_text(plan))
        return 0
    # a program that reads the JSON wants nothing else on stdout
    with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
        run_dir = train(
            config,
            rollouts_to=arguments.rollouts_to,
            rollouts_from=arguments.rollouts_from,
            num_groups=arguments.groups,
        )
    if arguments.json and arguments.rollouts_to is None:
        print((run_dir / "report.json").read_text(encoding="utf-8"))
    return 0


def _print_recipes(*, as_json: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    recipes = [(name, about) for name in recipe_names() if (about := about_recipe(name)) is not None]
    if as_json:
        print(json.dumps([{"name": name, **about.model_dump()} for name, about in recipes], indent=2))
        return
    table = Table("recipe", "what it is for", "source", "where it does otherwise", box=SIMPLE_HEAD, show_lines=True)
    for name, about in recipes:
        table.add_row(name, about.purpose, about.source, about.deviation)
    Console(highlight=False).print(table)


def _resolve(arguments: TrainArguments) -> Config:
    given: dict[str, Any] = {
        "model.name": arguments.model,
        "data.path": arguments.data,
        "run.name": arguments.name,
        "run.seed": arguments.seed,
        "learning.num_steps": arguments.steps,
        "warm_start.kind": arguments.warm_start,
        "data.think": arguments.think,
        "scoring.control": arguments.control,
        "model.allow_large": arguments.allow_large or None,
    }
    return resolve(arguments.recipe, {key: value for key, value in given.items() if value is not None}, arguments.set)


def _stop_on_interrupt(training: Any) -> None:
    """First Ctrl-C: finish the step, save, exit. Second: exit at once; the last checkpoint stays."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if training.stop_requested:
            raise KeyboardInterrupt
        training.stop_requested = True
        print("\nsaving after this step or measurement; press Ctrl-C again to stop at once", file=sys.stderr)

    # Python hands signals to the main thread only; a run in another one is stopped through its control file
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, handle)


class _CallableModule(ModuleType):
    """This module, with a call that trains."""

    def __call__(self, config: Config) -> Path:
        """Return `train(config)`."""
        return train(config)


if __name__ == "__main__":
    sys.exit(main())
else:
    sys.modules[__name__].__class__ = _CallableModule
