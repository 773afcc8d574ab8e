"""Measure a checkpoint of a run on held-out questions: `python -m edge_rl.eval runs/<name>`; also `edge_rl.evaluate`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from edge_rl.cli import run_door
from edge_rl.types import EvalReport, Split


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Measure a checkpoint of a run on held-out questions, without hints, as training does. Default: the best adapter."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, such as runs/default-smollm2-135m-seed0."""
    adapter: Path | None = None
    """Measure this adapter of the run's base, e.g. runs/<name>/checkpoints/step-10/adapter."""
    base: bool = False
    """Measure the base without an adapter."""
    gguf: Path | None = None
    """Measure this file in llama.cpp."""
    split: Literal["test", "validation"] = "test"
    """Which questions."""
    samples: int | None = None
    """Completions per question; none given = as the run."""
    at_8: int | None = None
    """So many questions, evenly spread, get 8 completions, for pass@8; none given = as the run."""
    questions: int | None = None
    """Only the first so many questions."""
    save: str | None = None
    """Also write the result to eval/<SAVE>.json in the run's folder."""
    json: bool = False
    """Print the result as JSON."""


def evaluate(  # noqa: PLR0913  (the options of the door)
    run_dir: Path | str,
    *,
    adapter: Path | str | None = None,
    base: bool = False,
    gguf: Path | str | None = None,
    split: Literal["test", "validation"] = "test",
    samples: int | None = None,
    at_8: int | None = None,
    questions: int | None = None,
    save: str | None = None,
) -> EvalReport:
    """Return the measurement of a run's best adapter, of another adapter, of the base, or of a GGUF.

    `samples`, `at_8` and `questions` are those of the run where they are None; `save` writes eval/<save>.json too.

    Raises: EdgeRLError for what a user can mend.
    """
    # heavy imports: --help and a wrong folder should not wait for them
    from edge_rl.pipeline.measuring import Extent, Target, measure_run

    target = Target(
        adapter=None if adapter is None else Path(adapter), is_base=base, gguf=None if gguf is None else Path(gguf)
    )
    extent = Extent(split=Split(split), samples=samples, at_8=at_8, questions=questions)
    return measure_run(Path(run_dir), target, extent, save=save)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.eval`."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(EvalArguments, args=argv, prog="python -m edge_rl.eval")
    report = evaluate(
        arguments.run,
        adapter=arguments.adapter,
        base=arguments.base,
        gguf=arguments.gguf,
        split=arguments.split,
        samples=arguments.samples,
        at_8=arguments.at_8,
        questions=arguments.questions,
        save=arguments.save,
    )
    print(json.dumps(asdict(report), indent=2) if arguments.json else report_text(report))
    return 0


def report_text(report: EvalReport) -> str:
    """Return a measurement for people."""
    completions = sum(report.num_samples.values())
    at_1, at_8 = report.pass_at_1, report.pass_at_8
    wide = sum(count >= 8 for count in report.num_samples.values())
    lines = [
        f"{report.name}: {len(report.num_samples)} questions, {completions} judged completions, {report.seconds:.0f} s",
        f"pass@1             {at_1.value:.1%} ({at_1.low:.1%} to {at_1.high:.1%})",
        f"pass@8             {at_8.value:.1%} ({at_8.low:.1%} to {at_8.high:.1%}) of {wide} questions"
        if at_8 is not None
        else "pass@8             - (needs 8 completions of a question: --samples 8 or --at-8 N)",
        f"code share         {report.code_share:.0%}",
        f"tokens per answer  {report.tokens:.0f}",
        f"truncated          {report.truncated}",
    ]
    if report.unjudged:
        lines.append(f"could not judge    {report.unjudged} (in no rate)")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
