"""Merge a run's best adapter, write GGUF files and check them in llama.cpp: `python -m edge_rl.export runs/<name>`.

The module itself can be called: `edge_rl.export(run_dir, ...)` is its function `export`.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import tyro

from edge_rl.cli import run_door


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Merge a run's best adapter, write GGUF files and check them in llama.cpp."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, such as runs/default-smollm2-135m-seed0."""
    formats: tuple[Literal["f16", "q8_0"], ...] | None = None
    """GGUF files to write; none given = those of the run's settings."""
    merge_only: bool = False
    """Write the merged safetensors folder and no GGUF."""
    adapter: Path | None = None
    """Another adapter of the same base, instead of the run's best."""
    json: bool = False
    """Print the record as JSON."""


def export(
    run_dir: Path, *, formats: Sequence[Literal["f16", "q8_0"]] | None = None, adapter: Path | None = None
) -> dict[str, Any]:
    """Export a run; return what runs/<name>/export/export.json records.

    Raises: EdgeRLError for what a user can mend.
    """
    # heavy imports: --help and a wrong folder should not wait for them
    from edge_rl.pipeline.exporting import export_run
    from edge_rl.pipeline.run_folder import read_config

    return export_run(run_dir, read_config(run_dir), formats=formats, adapter=adapter)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.export`."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(ExportArguments, args=argv, prog="python -m edge_rl.export")
    formats = () if arguments.merge_only else arguments.formats
    result = export(arguments.run, formats=formats, adapter=arguments.adapter)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(_lines(arguments.run, result)))
    return 0


def _lines(run_dir: Path, result: dict[str, Any]) -> list[str]:
    merge = result["merge"]
    lines = [f"warning: {warning}" for warning in merge["warnings"]]
    lines.append(
        f"merged      {merge['num_changed']} of {merge['num_adapted']} matrices changed, {merge['dtype']}, "
        f"log-probability within {merge['max_logprob_gap']:.4f} of base + adapter"
    )
    for format, parity in result["parity"].items():
        size = result["gguf"][format]["bytes"] / 1e6
        lines.append(
            f"{format:<11} {size:.0f} MB; in llama.cpp: {parity['num_texts']} texts give the same tokens, likeliest token "
            f"equal at {parity['top1_agreement']:.1%} of {parity['num_positions']} positions, log-probability within "
            f"{parity['max_logprob_gap']:.3f}"
        )
    lines.append(f"everything lies in {run_dir / 'export'}")
    return lines


class _CallableModule(ModuleType):
    """This module, with a call that exports."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return `export(...)`."""
        return export(*args, **kwargs)


if __name__ == "__main__":
    sys.exit(main())
else:
    sys.modules[__name__].__class__ = _CallableModule
