"""What a run would be and cost on this machine: `--dry-run`. Downloads nothing, loads no weights, writes nothing."""

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from huggingface_hub import try_to_load_from_cache
from torch import nn

from edge_rl.catalog import ModelEntry, Shape, resolve_model, shape_of_config
from edge_rl.config import Config
from edge_rl.pipeline.assembly import device_of_machine, load_split_samples
from edge_rl.pipeline.estimates import (
    EFFICIENCY,
    EFFICIENCY_REASONS,
    PASS_SECONDS_PER_LAYER,
    Precision,
    TaskFacts,
    collected_rollouts,
    memory_parts,
    phase_work,
    slots_used,
    step_tokens,
    task_facts,
    update_pass,
    work_flops,
)
from edge_rl.pipeline.exporting import BYTES_PER_WEIGHT
from edge_rl.weights.embedded import PACKAGE, embedded_source
from edge_rl.weights.gguf import FAMILIES
from edge_rl.weights.loading import check_quantisation, choose_dtype
from edge_rl.weights.packed import can_pack

MEASURE_SECONDS = 0.8
"""Of each matrix-product measurement; long enough that a busy machine lets one of them through undisturbed."""

WIDE_ROWS = 256
"""From here on the rate does not grow any more; a product stays so short that it is rarely interrupted."""

EXPORT_SECONDS_PER_GB = 60.0
"""Merging, writing, reading back and comparing in llama.cpp, per GB written; SmolLM2-135M on 2 cores."""

BUSY_PERCENT = 25.0
"""Of all cores, taken by other programs: from here on they spoil the measurement."""

SLOW_MINUTES = 60
SMALL_STEP = 16
"""Rollouts of a step below which the gradient is mostly noise."""


def make_plan(config: Config) -> dict[str, Any]:
    """Return the plan of a run as JSON values: memory in bytes, rates in GFLOP/s, times in minutes without set-up.

    `memory` and `minutes` are None where the sizes of the model are unknown before its config is downloaded.

    Raises: ConfigError or DataError for what would stop the run before its first step.
    """
    entry = _with_cached_shape(resolve_model(config.model.name, allow_large=config.model.allow_large))
    device = device_of_machine()
    check_quantisation(config.model, device)
    dtype = choose_dtype(config.model.dtype, device)
    samples = load_split_samples(config)
    facts = task_facts((*samples.train, *samples.validation, *samples.test), config.data.system)
    weights, is_present, download = _weights(entry)
    plan: dict[str, Any] = {
        "run": {"folder": str(config.run_dir), "exists": (config.run_dir / "config.toml").exists()},
        "model": {
            "name": entry.name,
            "location": entry.location,
            "parameters": entry.parameters,
            "family": entry.family,
            "licence": entry.licence,
            "weights": weights,
            "present": is_present,
            "download_bytes": download,
        },
        "device": _device_facts(device) | {"dtype": str(dtype).removeprefix("torch.")},
        "samples": {
            "path": config.data.path,
            "train": facts.num_train,
            "traces": facts.num_traces,
            "validation": facts.num_validation,
            "test": facts.num_test,
        },
        "tokens_per_step": step_tokens(config, facts),
        "memory": None,
        "rate": None,
        "minutes": None,
    }
    if entry.shape is not None:
        parameters = entry.parameters or entry.shape.matrix_parameters
        plan["memory"] = _memory(config, entry, parameters, facts, (device, dtype))
        plan["rate"] = _rates(config, entry.shape, facts, (device, dtype))
        plan["minutes"] = _minutes(config, entry.shape, parameters, facts, plan["rate"])
    plan["settings"] = changed_settings(config)
    plan["warnings"] = _warnings(config, entry, facts, plan)
    return plan


def plan_text(plan: dict[str, Any]) -> str:
    """Return the plan for people."""
    model, device, samples, tokens = plan["model"], plan["device"], plan["samples"], plan["tokens_per_step"]
    settings = plan["settings"]
    size = f"{model['parameters'] / 1e9:.2f}B parameters" if model["parameters"] else "size unknown"
    facts = [size, model["family"] or "family unknown", model["licence"] or "licence: see its model card"]
    download = f": {_gb(model['download_bytes'])} to download" if model["download_bytes"] else ""
    state = "here already" if model["present"] else f"not here yet{download}"
    rows: list[tuple[str, str]] = [
        ("run", f"{plan['run']['folder']} ({'goes on' if plan['run']['exists'] else 'new'})"),
        ("model", f"{model['name']} = {model['location']}: {', '.join(facts)}"),
        ("weights", f"{model['weights']}, {state}"),
        ("device", f"{device['name']}, {device['dtype']}, {device['threads']} CPU threads"),
        (
            "samples",
            f"{samples['train']} train ({samples['traces']} with a trace), {samples['validation']} validation, "
            f"{samples['test']} test, from {samples['path']}",
        ),
        ("a step", f"at most {tokens['at_most']} completion tokens, about {tokens['expected']} expected"),
        *_memory_rows(plan["memory"]),
        *_time_rows(plan["minutes"], plan["rate"]),
        *(
            ("settings" if index == 0 else "", f"{key} = {pair['value']!r} (default {pair['default']!r})")
            for index, (key, pair) in enumerate(settings.items())
        ),
        *(("warning", warning) for warning in plan["warnings"]),
    ]
    return "\n".join(f"{label:<9} {text}".rstrip() for label, text in rows)


def changed_settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that differ from the class defaults: "section.key" -> value and default."""
    ours, defaults = config.model_dump(mode="json"), Config().model_dump(mode="json")
    changed: dict[str, dict[str, Any]] = {}
    for section, values in ours.items():
        if not isinstance(values, dict):
            continue
        for key, value in values.items():  # pyright: ignore[reportUnknownVariableType]
            if value != defaults[section][key]:
                changed[f"{section}.{key}"] = {"value": value, "default": defaults[section][key]}
    return changed


def matmul_gflops(shape: Shape, rows: int, device: torch.device, dtype: torch.dtype) -> float:
    """Return the measured rate of matrix products of `rows` tokens with the MLP's matrices, in GFLOP/s.

    Three matrices in turn, as in a model: one alone might stay in a cache. The quickest product counts, as the others may
    have shared the machine with another process.
    """
    inputs = torch.randn(rows, shape.hidden, device=device, dtype=dtype)
    matrices = [torch.randn(shape.intermediate, shape.hidden, device=device, dtype=dtype) for _ in range(3)]
    quickest, count, begun = float("inf"), 0, time.perf_counter()
    with torch.inference_mode():
        while count < 4 or time.perf_counter() - begun < MEASURE_SECONDS:
            started = time.perf_counter()
            nn.functional.linear(inputs, matrices[count % 3])
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if count:  # the first one also sets up
                quickest = min(quickest, time.perf_counter() - started)
            count += 1
    return 2e-9 * rows * shape.hidden * shape.intermediate / quickest


# -- model and machine -------------------------------------------------------------------------------------------------


def _with_cached_shape(entry: ModelEntry) -> ModelEntry:
    """The sizes of a model that the catalog does not know, where its config was downloaded before."""
    if entry.shape is not None or entry.source != "hub":
        return entry
    path = try_to_load_from_cache(entry.location, "config.json")
    if not isinstance(path, str):
        return entry
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    shape = shape_of_config(config)
    return ModelEntry(
        name=entry.name,
        source=entry.source,
        location=entry.location,
        family=str(config.get("model_type", "")),
        parameters=shape.matrix_parameters if shape else entry.parameters,
        shape=shape,
        licence=entry.licence,
    )


def _weights(entry: ModelEntry) -> tuple[str, bool, int | None]:
    """Where the weights come from, whether they are here, and the bytes to download (None: unknown)."""
    if entry.source == "folder":
        return f"from the folder {entry.location}", True, 0
    if entry.source == "embedded":
        state = embedded_source()
        return f"from the Python package {PACKAGE} ({state})", state != "absent", 93_000_000 if state == "absent" else 0
    names = ("model.safetensors", "model.safetensors.index.json")
    is_present = any(isinstance(try_to_load_from_cache(entry.location, name), str) for name in names)
    size = 2 * entry.parameters if entry.parameters else None
    return "from huggingface.co", is_present, 0 if is_present else size


def _device_facts(device: torch.device) -> dict[str, Any]:
    is_gpu = device.type == "cuda"
    return {
        "type": device.type,
        "name": torch.cuda.get_device_name(device) if is_gpu else "CPU",
        "threads": torch.get_num_threads(),
    }


# -- memory and time ---------------------------------------------------------------------------------------------------


def _memory(
    config: Config,
    entry: ModelEntry,
    parameters: int,
    facts: TaskFacts,
    place: tuple[torch.device, torch.dtype],
) -> dict[str, Any]:
    assert entry.shape is not None
    device, dtype = place
    precision = Precision(
        value_bytes=dtype.itemsize,
        is_packed=can_pack(nn.Linear(2, 2, bias=False, device=device, dtype=dtype).requires_grad_(False)),
        is_four_bit=config.model.quantisation == "nf4",
    )
    parts = memory_parts(config, entry.shape, parameters, entry.family, precision, facts)
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    total = sum(parts.values())
    return {
        "parts": parts,
        "total": total,
        "available": available,
        "fits": total <= available,
        "slots_used": slots_used(config, facts),
    }


def _rates(config: Config, shape: Shape, facts: TaskFacts, place: tuple[torch.device, torch.dtype]) -> dict[str, Any]:
    device, dtype = place
    narrow = min(config.rollout.slots, collected_rollouts(config))
    wide = min(WIDE_ROWS, update_pass(config, facts).tokens)
    rates: dict[str, Any] = {
        "busy_percent": psutil.cpu_percent(interval=0.3),
        "decode_rows": narrow,
        "decode_gflops": matmul_gflops(shape, narrow, device, dtype),
        "update_rows": wide,
        "update_gflops": matmul_gflops(shape, wide, device, dtype),
        "efficiency": EFFICIENCY,
        "reasons": EFFICIENCY_REASONS,
        "pass_seconds": PASS_SECONDS_PER_LAYER * shape.layers if device.type == "cuda" else 0.0,
    }
    # llama.cpp answers on the CPU
    rates["cpu_gflops"] = (
        matmul_gflops(shape, 16, torch.device("cpu"), torch.float32)
        if device.type == "cuda"
        else rates["decode_gflops"]
    )
    return rates


def _minutes(
    config: Config, shape: Shape, parameters: int, facts: TaskFacts, rates: dict[str, Any]
) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for phase, work in phase_work(config, facts).items():
        generate, learn = work_flops(work, shape, config.model.rank)
        rate, efficiency = rates["decode_gflops"], EFFICIENCY["rollout" if phase == "GRPO rollouts" else "evaluation"]
        if phase == "GGUF test":
            rate, efficiency = rates["cpu_gflops"], EFFICIENCY["llama_cpp"]
        generating = max(generate / (rate * efficiency * 1e9), work.passes * rates["pass_seconds"])
        seconds[phase] = generating + learn / (rates["update_gflops"] * EFFICIENCY["update"] * 1e9)
    seconds["export"] = 0.0
    if config.export.formats:
        written = sum(BYTES_PER_WEIGHT[name] * parameters for name in ("merged", *config.export.formats))
        seconds["export"] = written / 1e9 * EXPORT_SECONDS_PER_GB
    minutes = {phase: value / 60 for phase, value in seconds.items()}
    return minutes | {"total": sum(minutes.values())}


# -- words -------------------------------------------------------------------------------------------------------------


def _warnings(config: Config, entry: ModelEntry, facts: TaskFacts, plan: dict[str, Any]) -> list[str]:
    warnings: list[str] = []
    memory, minutes = plan["memory"], plan["minutes"]
    if memory is None:
        warnings.append("the sizes of this model are unknown before its config is downloaded: no memory, no minutes")
    elif not memory["fits"]:
        largest = max(memory["parts"], key=lambda part: memory["parts"][part])
        warnings.append(
            f"does not fit: needs {_gb(memory['total'])}, {_gb(memory['available'])} are free, most for {largest}; "
            "choose a smaller model, or lower learning.microbatch_tokens or rollout.slots"
        )
    if minutes is not None and minutes["total"] > SLOW_MINUTES:
        where = "this CPU" if plan["device"]["type"] == "cpu" else "this device"
        warnings.append(f"slow: about {minutes['total'] / 60:.1f} hours on {where}; --steps, a GPU or a smaller model")
    if minutes is not None and plan["rate"]["busy_percent"] > BUSY_PERCENT:
        warnings.append(
            f"other programs take {plan['rate']['busy_percent']:.0f} % of the CPU just now: the measured rate may be far too "
            "low and the minutes too many; ask again when it is idle"
        )
    if minutes is not None and plan["device"]["type"] == "cuda":
        warnings.append("the efficiencies behind the minutes were measured on a CPU; on a GPU they are a guess")
    rollouts = config.rollout.group_size * config.rollout.prompts_per_step
    if rollouts < SMALL_STEP:
        warnings.append(
            f"a step has {rollouts} rollouts (group_size x prompts_per_step); below {SMALL_STEP} it is mostly noise"
        )
    if config.warm_start.kind == "sft" and not facts.num_traces:
        warnings.append("no training sample carries a trace, so the warm start will stop the run: --warm-start none")
    warnings += _export_warnings(config, entry)
    if "non-commercial" in entry.licence:
        warnings.append(f"licence {entry.licence}: what is trained from it falls under it too")
    return warnings


def _export_warnings(config: Config, entry: ModelEntry) -> list[str]:
    if not config.export.formats:
        return []
    if entry.family and entry.family not in FAMILIES:
        return [f"family {entry.family!r} cannot be written as GGUF: --set export.formats=[]"]
    missing = [name for name in ("gguf", "xllamacpp") if importlib.util.find_spec(name) is None]
    return [f"{', '.join(missing)} not installed: pip install 'edge_rl[export]'"] if missing else []


def _memory_rows(memory: dict[str, Any] | None) -> list[tuple[str, str]]:
    if memory is None:
        return []
    parts = [(f"{_gb(size):>9}  {part}") for part, size in memory["parts"].items()]
    total = f"{_gb(memory['total']):>9}  in all, of {_gb(memory['available'])} free"
    return [("memory" if index == 0 else "", text) for index, text in enumerate((*parts, total))]


def _time_rows(minutes: dict[str, float] | None, rates: dict[str, Any] | None) -> list[tuple[str, str]]:
    if minutes is None or rates is None:
        return []
    efficiency = rates["efficiency"]
    rows = [f"{value:9.1f}  {phase}" for phase, value in minutes.items() if phase != "total"]
    rows.append(f"{minutes['total']:9.1f}  in all, set-up excluded")
    rows.append(
        f"from matrix products of {rates['decode_gflops']:.0f} GFLOP/s ({rates['decode_rows']} rows) and "
        f"{rates['update_gflops']:.0f} ({rates['update_rows']} rows), measured now, of which rollouts reach "
        f"{efficiency['rollout']:.0%}, measurements {efficiency['evaluation']:.0%}, updates {efficiency['update']:.0%}"
    )
    return [("minutes" if index == 0 else "", text) for index, text in enumerate(rows)]


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
