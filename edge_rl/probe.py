"""Measure a model on its task before anything is spent: `python -m edge_rl.probe --model M --data D --k 8`."""

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from edge_rl.cli import run_door
from edge_rl.config import resolve
from edge_rl.errors import ConfigError
from edge_rl.evaluation.probe import BUCKETS, DEAD, SOLVED, Advice

if TYPE_CHECKING:
    from edge_rl.pipeline.probing import Probe

BAR = 40
"""Width of the longest bar of the histogram, in characters."""


@dataclass(frozen=True, kw_only=True)
class ProbeArguments:
    """Measure what a model can do on the training questions, and say which recipe that speaks for. Trains nothing."""

    model: str | None = None
    """Alias (smollm2-135m, qwen-1.5b, ...), hub id, or local folder."""
    data: str | None = None
    """JSONL of samples."""
    k: int = 8
    """Completions per question; the group size of a run."""
    questions: int | None = 48
    """So many training questions, evenly spread; None = all."""
    think: Literal["off", "on", "both"] = "off"
    """Thinking mode of the model's chat template; both = measure it with and without, and go on with the better."""
    adapter: Path | None = None
    """Probe this adapter of the model, such as runs/<name>/best/adapter."""
    seed: int | None = None
    """Every random choice derives from it."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """section.key=value, any setting of the tree; may be repeated."""
    json: bool = False
    """Print the result as JSON."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.probe`; 1 where training on these questions is not worth it."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(ProbeArguments, args=argv, prog="python -m edge_rl.probe")
    if arguments.k < 2:
        raise ConfigError(f"--k {arguments.k}: a group needs at least 2 completions; 8 is usual")
    if arguments.questions is not None and arguments.questions < 1:
        raise ConfigError(f"--questions {arguments.questions}: expected at least 1, or None for all")
    given: dict[str, Any] = {
        "model.name": arguments.model,
        "data.path": arguments.data,
        "run.seed": arguments.seed,
    }
    modes = ("off", "on") if arguments.think == "both" else (arguments.think,)
    given = {key: value for key, value in given.items() if value is not None}
    configs = {mode: resolve("default", {**given, "data.think": mode}, arguments.set) for mode in modes}
    # heavy imports: --help and a mistake in the settings should not wait for them
    from edge_rl.pipeline.probing import probe_model

    started = time.monotonic()
    probes = {
        mode: probe_model(config, k=arguments.k, num_questions=arguments.questions, adapter=arguments.adapter)
        for mode, config in configs.items()
    }
    # max() keeps the first of equals: thinking has to earn its tokens
    think = max(probes, key=lambda mode: probes[mode].report.pass_at_1.value)
    probe = probes[think]
    command = train_command(probe.advice, model=arguments.model, data=arguments.data, think=think)
    if arguments.json:
        by_mode = {mode: asdict(found.report) for mode, found in probes.items()}
        content = {
            **by_mode[think],
            "think": think,
            "by_think": by_mode,
            "advice": asdict(probe.advice),
            "command": command,
        }
        print(json.dumps(content, indent=2))
    else:
        print(probe_text(probe, command, seconds=time.monotonic() - started))
        for mode, found in probes.items():
            if len(probes) > 1:
                at_1, median = found.report.pass_at_1.value, found.report.lengths.median
                print(f"thinking {mode:<10}pass@1 {at_1:.1%}, median of {median} tokens")
    return 0 if probe.advice.worth_it else 1


def train_command(advice: Advice, *, model: str | None, data: str | None, think: str = "off") -> str:
    """Return the command that follows the advice."""
    words = ["python", "-m", "edge_rl.train", "--recipe", advice.recipe]
    words += [part for flag, value in (("--model", model), ("--data", data)) if value for part in (flag, value)]
    words += ["--think", "on"] if think == "on" else []
    words += [part for key, value in advice.settings.items() for part in ("--set", f"{key}={value}")]
    return shlex.join(words)


def probe_text(probe: "Probe", command: str, *, seconds: float) -> str:
    """Return a probe for people."""
    report, advice = probe.report, probe.advice
    at_1, at_k, lengths = report.pass_at_1, report.pass_at_k, report.lengths
    lines = [
        f"{len(report.success)} questions, {report.num_completions} completions, {seconds:.0f} s",
        f"pass@1             {at_1.value:.1%} ({at_1.low:.1%} to {at_1.high:.1%})",
        f"pass@{report.k:<14}{at_k.value:.1%} ({at_k.low:.1%} to {at_k.high:.1%})",
        f"groups with signal {report.live_share:.0%} (some right, some wrong, of {report.k})",
        f"tokens             median {lengths.median}, 95 % up to {lengths.p95}, longest {lengths.longest}, "
        f"{lengths.truncated:.0%} cut",
        f"runs code          {report.code_share:.0%} of the completions"
        + (f", {report.tool_calls:.1f} calls each" if report.code_share else ""),
    ]
    if report.unjudged:
        lines.append(f"could not judge    {report.unjudged} (in no rate)")
    lines += ["", "solved of a question, in per cent; questions", *histogram(report.buckets)]
    dead, solved = (
        [name for name, rate in report.success.items() if is_there(rate)] for is_there in (_is_dead, _is_solved)
    )
    lines += [
        f"{label}: {_some(names)}" for label, names in (("never solved", dead), ("nearly always", solved)) if names
    ]
    lines += ["", f"recipe: {advice.recipe}" + ("" if advice.worth_it else " (but not yet)")]
    lines += [f"  - {reason}" for reason in advice.reasons]
    return "\n".join([*lines, "", command])


def histogram(buckets: Mapping[str, int]) -> list[str]:
    """Return a line per bucket with a bar."""
    most = max(buckets.values(), default=0) or 1
    return [f"{name:>6}  {count:>4}  {'#' * -(-count * BAR // most)}" for name, count in buckets.items()]


def _is_dead(rate: float) -> bool:
    return rate <= dict(BUCKETS)[DEAD]


def _is_solved(rate: float) -> bool:
    return rate > BUCKETS[[name for name, _ in BUCKETS].index(SOLVED) - 1][1]


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


if __name__ == "__main__":
    sys.exit(main())
