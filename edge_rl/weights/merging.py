"""Base + adapter -> a plain model folder that needs no adapter library, with proof that the merge did what it says.

Knows a base, an adapter folder and an output folder. The weights of a training process are not touched: a copy of the
base is loaded for the merge, in full precision, also if the adapter was trained on 4-bit weights.
"""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from edge_rl.catalog import resolve_model
from edge_rl.config import ModelConfig
from edge_rl.errors import CheckpointError, ExportError, boundary
from edge_rl.weights.adapters import adapted_layers, attach_adapter, load_adapter_weights, merged_state, replace_folder
from edge_rl.weights.loading import load_base, quiet, turn_end_ids

FLOAT16_MAX = 65504.0
MAX_LOGPROB_GAP = {"float32": 0.002, "float16": 0.05, "bfloat16": 0.4}
"""Largest difference in log-probability between base + adapter and the merged folder that rounding explains."""
MIN_PROBABILITY = 0.01
"""Only tokens at least so likely are compared: the logarithm of a rare one magnifies rounding without end."""

KIT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'Problem: ' + message['content'] + "
    "'\n\nSolution:\n' }}{% else %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
)
"""The prompt that training uses for a model without a chat template, as a template, so that chat programs repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a merge did."""

    folder: str
    dtype: str
    num_adapted: int
    """Matrices that have an adapter."""
    num_changed: int
    """Of these, matrices in which at least one stored value differs from the base."""
    max_delta: float
    """Largest absolute change of a weight."""
    max_delta_error: float
    """Largest difference between the stored change and scale * B A, in units of one rounding step of the matrix."""
    max_logprob_gap: float
    """Over tokens of at least MIN_PROBABILITY, after loading the folder again."""
    top1_agreement: float
    """Share of positions where both give the same likeliest token."""
    num_positions: int
    warnings: tuple[str, ...] = ()


def merge(
    config: ModelConfig, adapter: Path, folder: Path, *, prompts: Sequence[Sequence[int]], dtype: str = "auto"
) -> MergeReport:
    """Write base + adapter to `folder` as safetensors with config, tokenizer and chat template; return the proof.

    Args:
        config: names the base and the shape of the adapter.
        adapter: folder in peft's format.
        folder: replaced as a whole, so no shard of an earlier export survives.
        prompts: token ids on which base + adapter and the folder, loaded again, must agree.
        dtype: float16, bfloat16, float32, or auto = float16 if every weight fits into its range, else bfloat16. float16
            keeps three more bits of a weight than bfloat16, and a few steps of training change only the last ones.

    Raises: ExportError where a check fails; ModelError or CheckpointError where base or adapter cannot be read.
    """
    plain = config.model_copy(update={"quantisation": "none", "dtype": "float32"})
    if (resolve_model(config.name, allow_large=config.allow_large).parameters or 0) > 2_000_000_000:
        plain = plain.model_copy(
            update={"dtype": "bfloat16"}
        )  # 3B in float32 would take 12 GB; the sum is float32 anyway
    base, tokenizer = load_base(plain, "cpu")
    check_vocabulary(base, tokenizer)
    tuned = attach_adapter(base, plain, seed=0)
    load_adapter_weights(tuned, adapter)
    expected = [_logprobs(tuned, prompt) for prompt in prompts]
    target = _choose_dtype(tuned, dtype)
    state = merged_state(tuned, dtype=target)
    report = _compare_weights(tuned, state, folder)
    _write(tuned, tokenizer, state, folder)
    del state, tuned, base
    report = _compare_logprobs(report, load_merged(folder), prompts, expected)
    _check(report)
    return report


def load_merged(folder: Path) -> PreTrainedModel:
    """Return the model of a merged folder in float32 on the CPU, in eval mode.

    Raises: ExportError where it cannot be loaded.
    """
    with boundary(ExportError, f"merged folder {folder} does not load"), quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return cast(PreTrainedModel, model).eval()


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer with a token that has no row in the embedding; more rows than tokens are fine.

    Raises: ExportError, naming the token and the two sizes.
    """
    rows = cast(Any, model.get_input_embeddings()).num_embeddings
    beyond = {index: token for token, index in tokenizer.get_vocab().items() if index >= rows}
    if beyond:
        first = min(beyond)
        raise ExportError(
            f"token {beyond[first]!r} has id {first}, but the embedding has {rows} rows ({len(tokenizer)} tokens in "
            "all); resize the embedding before training or remove the token from the tokenizer"
        )


def _choose_dtype(tuned: PeftModel, requested: str) -> torch.dtype:
    if requested not in ("auto", "float16", "bfloat16", "float32"):
        raise ExportError(f"merge dtype is {requested!r}; choose auto, float16, bfloat16 or float32")
    if requested in ("bfloat16", "float32"):
        return torch.bfloat16 if requested == "bfloat16" else torch.float32
    largest = max(float(parameter.detach().abs().max()) for parameter in tuned.parameters())
    if largest < FLOAT16_MAX / 2:
        return torch.float16
    if requested == "float16":
        raise ExportError(f"a weight of {largest:.3g} is beyond float16 ({FLOAT16_MAX:.0f}); choose bfloat16")
    return torch.bfloat16


@torch.no_grad()
def _compare_weights(tuned: PeftModel, state: dict[str, Tensor], folder: Path) -> MergeReport:
    """Compare every adapted matrix with the base, and its change with scale * B A."""
    base: dict[str, Tensor] = {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in tuned.get_base_model().named_parameters()
        if "lora_" not in name
    }
    dtype = next(iter(state.values())).dtype
    step = torch.finfo(dtype).eps
    num_adapted = num_changed = 0
    max_delta = max_error = 0.0
    adapter_is_zero = True
    for name, layer in adapted_layers(tuned).items():
        weight, merged = base[f"{name}.weight"].float(), state[f"{name}.weight"].float()
        if not bool(torch.isfinite(merged).all()):
            raise ExportError(f"{name} has values that are not finite after the merge; the adapter is damaged")
        delta = cast(Tensor, layer.get_delta_weight("default")).float()
        adapter_is_zero &= not bool(delta.any())
        num_adapted += 1
        num_changed += int(bool((merged != weight.to(dtype).float()).any()))
        max_delta = max(max_delta, float(delta.abs().max()))
        scale = step * float(torch.maximum(weight.abs().max(), merged.abs().max())) or step
        max_error = max(max_error, float((merged - weight - delta).abs().max()) / scale)
    if not adapter_is_zero and num_changed == 0:
        raise ExportError(f"the merge changed none of {num_adapted} matrices although the adapter is not zero")
    warnings = ("the adapter changes nothing: all its B matrices are zero, no training step was taken",)
    return MergeReport(
        folder=str(folder),
        dtype=str(dtype).removeprefix("torch."),
        num_adapted=num_adapted,
        num_changed=num_changed,
        max_delta=max_delta,
        max_delta_error=max_error,
        max_logprob_gap=0.0,
        top1_agreement=1.0,
        num_positions=0,
        warnings=warnings if adapter_is_zero else (),
    )


def _write(tuned: PeftModel, tokenizer: PreTrainedTokenizerBase, state: dict[str, Tensor], folder: Path) -> None:
    """Write the folder beside its place, look at what lies there, then rename."""
    base = cast(PreTrainedModel, tuned.get_base_model())
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        # an empty model of the same config does the sharding, the index and the tied head; no adapter library in sight
        with torch.device("meta"):
            shell: Any = type(base)(cast(Any, base.config))
        shell.to(next(iter(state.values())).dtype)
        shell.generation_config = _generation_config(base, tokenizer)
        with quiet():
            shell.save_pretrained(scratch, state_dict=dict(state))
        if tokenizer.chat_template is None:
            tokenizer.chat_template = KIT_TEMPLATE
        tokenizer.save_pretrained(str(scratch))
        check_folder(scratch)
        replace_folder(scratch, folder)
    except OSError as error:
        raise ExportError(
            f"cannot write {folder}: {error}; the adapter is untouched, free space and export again"
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _generation_config(base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    """The base's, with every token that ends a turn as an end token."""
    known = base.generation_config or GenerationConfig()
    ends = cast(int | Sequence[int] | None, known.eos_token_id)
    listed = {ends} if isinstance(ends, int) else set(ends or ())
    settings = known.to_diff_dict() | {"eos_token_id": sorted(listed | turn_end_ids(tokenizer))}
    return GenerationConfig.from_dict(settings | {"pad_token_id": tokenizer.pad_token_id})


def check_folder(folder: Path) -> None:
    """Check that a folder is a whole model: config, all weight shards that its index names, tokenizer, chat template.

    Raises: ExportError for what is missing, or for an adapter in place of weights.
    """
    present = {path.name for path in folder.iterdir()}
    missing = [name for name in ("config.json", "tokenizer.json", "tokenizer_config.json") if name not in present]
    index = folder / "model.safetensors.index.json"
    shards = {"model.safetensors"}
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    missing += sorted(shards - present)
    stale = sorted(name for name in present if name.endswith(".safetensors") and name not in shards)
    if not missing and "chat_template.jinja" not in present:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        missing += [] if settings.get("chat_template") else ["chat_template.jinja"]
    if missing or stale:
        what = [f"lacks {', '.join(missing)}"] if missing else []
        what += [f"has stray {', '.join(stale)}"] if stale else []
        raise ExportError(f"{folder} is no merged model: it {' and '.join(what)}; export again")


@torch.no_grad()
def _logprobs(model: Any, token_ids: Sequence[int]) -> Tensor:
    """[T, V] float32 log-probabilities of the token after each position."""
    logits = model(torch.tensor([list(token_ids)])).logits[0]
    return logits.float().log_softmax(dim=-1)


def _compare_logprobs(
    report: MergeReport, merged: PreTrainedModel, prompts: Sequence[Sequence[int]], expected: Sequence[Tensor]
) -> MergeReport:
    gap, same, total = 0.0, 0, 0
    for prompt, before in zip(prompts, expected, strict=True):
        after = _logprobs(merged, prompt)
        if not bool(torch.isfinite(after).all()):
            raise ExportError(f"{report.folder} gives logits that are not finite")
        likely = torch.maximum(before, after) >= math.log(MIN_PROBABILITY)
        gap = max(gap, float((before - after).abs()[likely].max()) if bool(likely.any()) else 0.0)
        same += int((before.argmax(dim=-1) == after.argmax(dim=-1)).sum())
        total += len(prompt)
    return replace(report, max_logprob_gap=gap, top1_agreement=same / total if total else 1.0, num_positions=total)


def _check(report: MergeReport) -> None:
    if report.max_delta_error > 1.0:
        raise ExportError(
            f"a merged weight is {report.max_delta_error:.1f} rounding steps off W + scale * B A, at most 1"
        )
    limit = MAX_LOGPROB_GAP[report.dtype]
    if report.max_logprob_gap > limit:
        raise ExportError(
            f"{report.folder} differs from base + adapter by {report.max_logprob_gap:.3f} in log-probability, at most "
            f"{limit} is rounding; do not use it"
        )


def adapter_facts(adapter: Path) -> dict[str, Any]:
    """Return the record of the base that lies beside an adapter, and the sha256 of the adapter's weights.

    Raises: CheckpointError where there is no adapter.
    """
    weights = adapter / "adapter_model.safetensors"
    if not weights.is_file():
        raise CheckpointError(f"{adapter} holds no adapter_model.safetensors; train first, or give another run")
    record = adapter / "base.json"
    facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    return facts | {"sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
