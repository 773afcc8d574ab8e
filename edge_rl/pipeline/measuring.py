"""Measure one checkpoint of a run on held-out questions, over the code path of training."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_rl.config import Config, build
from edge_rl.errors import CheckpointError, ConfigError, ExportError
from edge_rl.evaluation.evaluator import save_report
from edge_rl.pipeline.assembly import Parts, assemble
from edge_rl.pipeline.run_folder import guard_disk, read_config
from edge_rl.rollout.engines.llama_cpp import LlamaCppEngine
from edge_rl.types import EvalReport, Sample, Split
from edge_rl.weights.adapters import load_adapter_weights
from edge_rl.weights.llama_cpp import serve

OF_TRAINING = re.compile(r"base|warm_start|rejection|preference|tuned|GGUF.*|validation-.*")
"""Names in eval/ that the run itself writes and reads back when it goes on."""

GGUF_SLOTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is measured: of the three, the one that is set; none = the run's best adapter."""

    adapter: Path | None = None
    is_base: bool = False
    gguf: Path | None = None

    def __post_init__(self) -> None:
        if (self.adapter is not None) + self.is_base + (self.gguf is not None) > 1:
            raise ConfigError("--adapter, --base and --gguf exclude each other; give one, or none for the best adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """On how much it is measured; None = as the run's settings say."""

    split: Split = Split.TEST
    samples: int | None = None
    """Completions per question."""
    at_8: int | None = None
    """So many questions, evenly spread, get 8 completions."""
    questions: int | None = None
    """Only the first so many."""


def measure_run(run_dir: Path, target: Target, extent: Extent, *, save: str | None = None) -> EvalReport:
    """Return the measurement of a checkpoint of a run; with `save`, write it to eval/<save>.json too.

    The draws depend on the run's seed and the question only, so checkpoints are compared on common draws.

    Raises: EdgeRLError for what a user can mend.
    """
    config = _with_extent(read_config(run_dir), extent)
    path = _report_path(run_dir, save) if save is not None else None
    adapter = _check_target(run_dir, target)
    parts = assemble(config)
    is_test = extent.split is Split.TEST
    samples = parts.samples.test if is_test else parts.samples.validation[: extent.questions]
    settings = config.evaluation
    num_samples = settings.samples_per_question if is_test else settings.validation_samples
    num_at_8 = settings.questions_at_8 if is_test or extent.at_8 is not None else 0
    name = save or _name(target)
    with parts.interpreter:
        if target.gguf is not None:
            report = measure_gguf(parts, target.gguf, name, samples, num_samples, num_at_8=num_at_8)
        else:
            if adapter is not None:
                # refuses an adapter of another base, rank or scale, which the engine would take without a word
                load_adapter_weights(parts.model, adapter)
            report = parts.measure(name, samples, num_samples, num_at_8=num_at_8, adapter=adapter)
    if path is not None:
        with guard_disk(path):
            save_report(report, path)
    return report


def measure_gguf(
    parts: Parts, file: Path, name: str, samples: Sequence[Sample], num_samples: int, *, num_at_8: int = 0
) -> EvalReport:
    """Return the measurement of a GGUF that llama.cpp runs.

    Raises: ExportError where llama.cpp does not load it; MissingExtraError without xllamacpp.
    """
    longest = max(len(prompt.token_ids) for prompt in parts.prompts(samples))
    with serve(file, slots=GGUF_SLOTS, context=longest + parts.config.rollout.max_tokens) as server:
        engine = LlamaCppEngine(server, logprobs=False)
        return parts.measure(name, samples, num_samples, num_at_8=num_at_8, engine=engine)


def _with_extent(config: Config, extent: Extent) -> Config:
    samples_key = "samples_per_question" if extent.split is Split.TEST else "validation_samples"
    given = {samples_key: extent.samples, "questions_at_8": extent.at_8, "max_questions": extent.questions}
    settings = config.model_dump()
    settings["evaluation"] |= {key: value for key, value in given.items() if value is not None}
    return build(settings)


def _check_target(run_dir: Path, target: Target) -> Path | None:
    """Return the folder of the adapter to measure; None for the base and for a GGUF."""
    if target.gguf is not None:
        if not target.gguf.is_file():
            raise ExportError(f"{target.gguf} does not exist; make it with: edge-rl export {run_dir}")
        return None
    if target.is_base:
        return None
    adapter = target.adapter or run_dir / "best" / "adapter"
    if not (adapter / "adapter_model.safetensors").is_file():
        advice = (
            "give a folder that holds adapter_model.safetensors" if target.adapter else "train first, or use --base"
        )
        raise CheckpointError(f"{adapter} holds no adapter; {advice}")
    return adapter


def _name(target: Target) -> str:
    if target.gguf is not None:
        return target.gguf.name
    if target.is_base:
        return "base"
    return "best adapter" if target.adapter is None else str(target.adapter)


def _report_path(run_dir: Path, name: str) -> Path:
    if not re.fullmatch(r"[\w.-]+", name) or OF_TRAINING.fullmatch(name):
        raise ConfigError(
            f"--save {name!r}: use letters, digits, - and _ only, and none of the names that the run itself writes "
            "(base, warm_start, rejection, preference, tuned, GGUF..., validation-...)"
        )
    path = run_dir / "eval" / f"{name}.json"
    if path.exists():
        raise ConfigError(f"{path} exists; choose another --save")
    return path
