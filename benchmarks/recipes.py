"""Every recipe on the embedded model and task with the same minutes: what each of them is worth here.

    python benchmarks/recipes.py --minutes 12 --seed 0            all recipes, one after the other; goes on where it stood
    python benchmarks/recipes.py --only grpo,dapo                 some of them

All runs share one warm start (same seed, same bytes) and the measurement of the base, which are made once and copied: a
run that has them does not make them again. The reinforcement stage ends after `--minutes`; recipes without one (sft, rft,
verifier-dpo) take what they take, and it stands in the table. The table goes to stdout as Markdown, all numbers to
runs/recipes-seed<seed>.json. Run it on a machine that does nothing else.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from edge_rl.config import recipe_names, resolve
from edge_rl.train import train

SHARED = ("warm_start", "eval/base.json", "eval/warm_start.json")
"""What the first run makes for all."""
ENOUGH_STEPS = 10_000
LEFT_OUT = frozenset(["default", "dler-da", "icrl"])
"""default is grpo without fresh prompts; dler-da starts from dler; icrl has no warm start and is run by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is compared."""

    minutes: float = 12.0
    """Of the reinforcement stage."""
    seed: int = 0
    only: str = ""
    """Recipes, separated by commas; empty = all."""
    folder: str = "runs"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the recipes and print the table."""
    settings = tyro.cli(Settings, args=argv)
    wanted = settings.only.split(",") if settings.only else [name for name in recipe_names() if name not in LEFT_OUT]
    reports: dict[str, dict[str, Any]] = {}
    for recipe in ["sft", *(name for name in wanted if name != "sft")]:
        reports[recipe] = _run(recipe, settings)
        content = {"minutes": settings.minutes, "seed": settings.seed, "reports": reports}
        target = Path(settings.folder) / f"recipes-seed{settings.seed}.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
        partial.replace(target)
    sys.stdout.write("\n".join(table(reports)) + "\n")


def table(reports: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table, the best recipe first."""
    lines = [
        "| recipe | pass@1 | 95 % interval | against the warm start | pass@8 | tokens | steps | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = sorted(reports.items(), key=lambda item: -_tuned(item[1])["pass_at_1"])
    for recipe, report in rows:
        tuned = _tuned(report)
        low, high = tuned["interval"]
        pair = report["paired"].get("tuned_vs_warm_start")
        against = (
            "" if pair is None else f"{100 * pair['diff']:+.1f} ({100 * pair['low']:+.1f} to {100 * pair['high']:+.1f})"
        )
        at_8 = "" if tuned["pass_at_8"] is None else f"{100 * tuned['pass_at_8']:.0f} %"
        trained = sum(
            report["seconds"].get(phase, 0.0)
            for phase in ("warm_start", "rejection", "preference", "reinforce", "validate")
        )
        lines.append(
            f"| {recipe} | {100 * tuned['pass_at_1']:.1f} % | {100 * low:.1f} to {100 * high:.1f} % | {against} | {at_8} | "
            f"{tuned['tokens']:.0f} | {report['steps']} | {trained / 60:.1f} |"
        )
    return lines


def _run(recipe: str, settings: Settings) -> dict[str, Any]:
    overrides: dict[str, Any] = {
        "run.name": f"recipe-{recipe}-seed{settings.seed}",
        "run.folder": settings.folder,
        "run.seed": settings.seed,
        "export.formats": (),
    }
    if resolve(recipe, {}).learning.num_steps:
        overrides |= {"learning.num_steps": ENOUGH_STEPS, "learning.max_minutes": settings.minutes}
    config = resolve(recipe, overrides)
    run_dir = config.run_dir
    first = Path(settings.folder) / f"recipe-sft-seed{settings.seed}"
    if recipe != "sft" and not run_dir.exists() and config.warm_start == resolve("sft", {}).warm_start:
        for name in SHARED:
            source = first / name
            target = run_dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                shutil.copy(source, target)
        # what the first run calls tuned is its warm start
        if not (run_dir / "eval" / "warm_start.json").exists():
            report = json.loads((first / "eval" / "tuned.json").read_text(encoding="utf-8")) | {"name": "warm start"}
            (run_dir / "eval" / "warm_start.json").write_text(json.dumps(report), encoding="utf-8")
    train(config)
    report = json.loads((run_dir / "report.json").read_text(encoding="utf-8"))
    steps = (
        (run_dir / "metrics.jsonl").read_text(encoding="utf-8").count("\n")
        if (run_dir / "metrics.jsonl").exists()
        else 0
    )
    return report | {"steps": steps}


def _tuned(report: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in report["rows"] if row["name"] == "tuned")


if __name__ == "__main__":
    main()
