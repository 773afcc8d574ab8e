"""From a run's best adapter to files for llama.cpp, each checked, with a record of what was checked."""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_rl.catalog import ModelEntry, resolve_model
from edge_rl.config import Config, ModelConfig
from edge_rl.data.prompts import build_prompt
from edge_rl.data.seeds import load_samples
from edge_rl.errors import ConfigError, ExportError, require
from edge_rl.monitor.metrics import write_text_atomically
from edge_rl.types import Split
from edge_rl.weights.gguf import FAMILIES, Format, write_gguf
from edge_rl.weights.llama_cpp import check_installed, serve
from edge_rl.weights.loading import load_tokenizer
from edge_rl.weights.merging import adapter_facts, load_merged, merge
from edge_rl.weights.modelfile import model_card, modelfile
from edge_rl.weights.parity import compare

NUM_PROMPTS = 8
BYTES_PER_WEIGHT: dict[str, float] = {"merged": 2.0, "f16": 2.0, "q8_0": 1.0625}
"""On disk. q8_0: 32 values of one byte and a two-byte scale."""


def check_toolchain(config: Config) -> None:
    """Say before a long training what its export would stumble over at the end.

    Raises: MissingExtraError for a package that is absent; ConfigError where the file to check is not written; ExportError
    for a family that has no converter or a full disk.
    """
    if not config.export.formats:
        return
    require("gguf", "export")
    check_installed()
    if config.export.check_format not in config.export.formats:
        raise ConfigError(
            f"export.check_format is {config.export.check_format!r}, but export.formats writes "
            f"{', '.join(config.export.formats)}; give one of these"
        )
    entry = resolve_model(config.model.name, allow_large=config.model.allow_large)
    if entry.family and entry.family not in FAMILIES:
        raise ExportError(
            f"{config.model.name} is of the family {entry.family!r}, which cannot be written as GGUF (only "
            f"{', '.join(FAMILIES)}); train without export: --set export.formats=[]"
        )
    _check_disk(config.run_dir, entry, config.export.formats)


def export_run(
    run_dir: Path, config: Config, *, formats: Sequence[Format] | None = None, adapter: Path | None = None
) -> dict[str, Any]:
    """Merge a run's best adapter, write the GGUF files, check each in llama.cpp; return what `export.json` records.

    Args:
        run_dir: the run's folder; results go to its subfolder export/.
        config: the run's settings.
        formats: None = those of the settings; empty = merge only.
        adapter: None = best/adapter of the run.

    Raises: ExportError where a check fails (the file is renamed to .failed); CheckpointError where there is no adapter.
    """
    wanted: Sequence[Format] = config.export.formats if formats is None else formats
    source = adapter or run_dir / "best" / "adapter"
    entry = resolve_model(config.model.name, allow_large=config.model.allow_large)
    provenance = _provenance(config, entry, source)
    if wanted:
        require("gguf", "export")
        check_installed()
    folder = run_dir / "export"
    _check_disk(folder, entry, wanted)
    prompts = _held_out_prompts(config)

    _remove_earlier(folder)
    started = time.monotonic()
    merged = merge(config.model, source, folder / "merged", prompts=prompts)
    seconds = {"merge": round(time.monotonic() - started, 1)}
    result: dict[str, Any] = {"provenance": provenance, "merge": asdict(merged), "gguf": {}, "parity": {}}
    result["merge"]["folder"] = "merged"
    for format in wanted:
        started = time.monotonic()
        result["gguf"][format], result["parity"][format] = _export_format(folder, format, prompts, provenance)
        seconds[format] = round(time.monotonic() - started, 1)
    _write_texts(folder, config, provenance, wanted)
    result["seconds"] = seconds
    write_text_atomically(folder / "export.json", json.dumps(result, indent=2) + "\n")
    return result


def gguf_file(run_dir: Path, format: Format) -> Path:
    """Return the place of a run's GGUF."""
    return run_dir / "export" / f"model-{format}.gguf"


def _remove_earlier(folder: Path) -> None:
    """Take away what an earlier export left, so that files of two adapters never lie side by side."""
    for pattern in ("*.gguf", "*.failed", "export.json", "Modelfile", "README.md"):
        for path in folder.glob(pattern):
            path.unlink()


def _export_format(
    folder: Path, format: Format, prompts: Sequence[Sequence[int]], provenance: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write one GGUF and compare it in llama.cpp; a file that fails does not stay."""
    file = folder / f"model-{format}.gguf"
    written = asdict(write_gguf(folder / "merged", file, format, provenance=provenance)) | {"file": file.name}
    tokenizer = load_tokenizer(ModelConfig(name=str(folder / "merged")))
    longest = max(len(prompt) for prompt in prompts) + 64
    try:
        with serve(file, slots=1, context=max(longest, 512)) as server:
            parity = compare(server, load_merged(folder / "merged"), tokenizer, prompts, format=format)
    except ExportError:
        file.rename(file.with_suffix(".failed"))
        raise
    return written, asdict(parity)


def _held_out_prompts(config: Config) -> list[tuple[int, ...]]:
    """Prompts that training did not see: of the validation split, as test is for evaluation only."""
    samples = [sample for sample in load_samples(Path(config.data.path)) if sample.split is Split.VALIDATION]
    if not samples:
        raise ExportError(f"{config.data.path} has no validation sample; the checks of an export need some")
    tokenizer: Any = load_tokenizer(config.model)
    return [build_prompt(sample, tokenizer, system=config.data.system).token_ids for sample in samples[:NUM_PROMPTS]]


def _provenance(config: Config, entry: ModelEntry, adapter: Path) -> dict[str, str]:
    """Where the weights come from, without any path of this machine."""
    facts = adapter_facts(adapter)
    data = Path(config.data.path)
    base = entry.location if entry.source != "folder" else Path(entry.location).name
    return {
        "name": f"{base.split('/')[-1]} tuned with edge_rl",
        "base": base,
        "base_checksum": str(facts.get("checksum", "")),
        "adapter_sha256": str(facts["sha256"]),
        "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest() if data.is_file() else "",
        "licence": entry.licence,
    }


def _check_disk(folder: Path, entry: ModelEntry, formats: Sequence[str]) -> None:
    """Refuse before the work where the disk cannot hold what it makes; one file more, as each is written beside its place."""
    if entry.parameters is None:
        return
    parts = {name: BYTES_PER_WEIGHT[name] * entry.parameters for name in ("merged", *formats)}
    needed = sum(parts.values()) + max(parts.values())
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        listed = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
        raise ExportError(
            f"the export needs {needed / 1e9:.2f} GB in {folder} ({listed}, and one copy while writing), but "
            f"{free / 1e9:.2f} GB are free; make room and run the export again, the adapter is kept"
        )


def _write_texts(folder: Path, config: Config, provenance: dict[str, str], formats: Sequence[Format]) -> None:
    settings = {
        "steps": config.learning.num_steps,
        "warm start": config.warm_start.kind,
        "loss": config.learning.loss,
        "learning rate": config.learning.learning_rate,
        "group size": config.rollout.group_size,
        "LoRA rank": config.model.rank,
        "LoRA alpha": config.model.alpha,
        "system message": config.data.system.replace("|", "\\|"),
    }
    write_text_atomically(folder / "README.md", model_card(provenance, settings))
    if not formats:
        return
    tokenizer: Any = load_tokenizer(config.model)
    name = f"model-{'q8_0' if 'q8_0' in formats else formats[0]}.gguf"
    text = modelfile(name, vocabulary=list(tokenizer.get_vocab()), system=config.data.system, context=2048)
    write_text_atomically(folder / "Modelfile", text)
