"""A merged model folder -> one GGUF file for llama.cpp. Families: llama (SmolLM2, Llama 3), qwen2, qwen3.

Knows the folder and the package `gguf`; runs no model. Whatever it does not know for sure (a family, a pre-tokenizer, a
rope scaling) it refuses: a wrong guess gives a file that loads and talks nonsense.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from edge_rl.errors import ExportError, boundary, require
from edge_rl.weights.loading import turn_end_ids

Format = Literal["f16", "q8_0"]
FLOAT16_MAX = 65504.0
QUANT_BLOCK = 32
"""Values that share one scale in q8_0: rows must be a multiple of it."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

# how a tokenizer cuts text before BPE -> the name of the same rule in llama.cpp
PRE_TOKENIZERS: dict[tuple[str, ...], str] = {
    ("Digits:individual", "ByteLevel:regex"): "smollm",
    (f"Split:{_QWEN_SPLIT}", "ByteLevel"): "qwen2",
    (f"Split:{_LLAMA3_SPLIT}", "ByteLevel"): "llama-bpe",
    ("ByteLevel:regex",): "gpt-2",
}

_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufReport:
    """What was written."""

    file: str
    format: str
    pre_tokenizer: str
    num_tensors: int
    bytes: int
    sha256: str


def write_gguf(folder: Path, file: Path, format: Format, *, provenance: Mapping[str, str]) -> GgufReport:
    """Convert a merged folder; matrices in the format, vectors in float32.

    Args:
        folder: as `merging.merge` writes it.
        file: appears whole or not at all.
        format: f16 or q8_0 (8 bit, one scale per 32 values).
        provenance: base, licence, hashes; kept in the file's metadata as edge_rl.<key>.

    Raises: ExportError for a family, tokenizer or size that cannot be converted, a value beyond float16, a full disk.
    """
    gguf = require("gguf", "export")
    with boundary(ExportError, f"cannot read {folder}"):
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _check_family(config, format)
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder))
    # beside its place, so that a killed export leaves no half file under the final name
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    os.close(handle)
    partial = Path(name)
    writer = gguf.GGUFWriter(partial, config["model_type"])
    try:
        _add_architecture(writer, config, gguf)
        pre_tokenizer = _add_tokenizer(writer, tokenizer, int(config["vocab_size"]), gguf)
        _add_provenance(writer, provenance, format, gguf)
        num_tensors = _add_tensors(writer, folder, config, format, gguf)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.chmod(0o644)
        partial.replace(file)
    except OSError as error:
        raise ExportError(f"cannot write {file}: {error}; free space and export again, the adapter is kept") from error
    finally:
        writer.close()
        partial.unlink(missing_ok=True)
    with file.open("rb") as written:
        sha256 = hashlib.file_digest(written, "sha256").hexdigest()
    return GgufReport(
        file=str(file),
        format=format,
        pre_tokenizer=pre_tokenizer,
        num_tensors=num_tensors,
        bytes=file.stat().st_size,
        sha256=sha256,
    )


def pre_tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return llama.cpp's name of the rule by which the tokenizer cuts text before BPE.

    It depends on the rule alone, so added tokens do not matter.
    Raises: ExportError for a rule that is not in the table.
    """
    state: dict[str, Any] = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())
    if state["model"]["type"] != "BPE":
        raise ExportError(f"tokenizer of type {state['model']['type']} cannot be converted; only byte-level BPE can")
    rule: dict[str, Any] = state["pre_tokenizer"] or {"type": "none"}
    parts: list[dict[str, Any]] = rule["pretokenizers"] if rule["type"] == "Sequence" else [rule]
    key = tuple(_describe(part) for part in parts)
    if key not in PRE_TOKENIZERS:
        raise ExportError(
            f"pre-tokenizer {key} is not one of {', '.join(PRE_TOKENIZERS.values())}; convert the merged folder with "
            "llama.cpp's convert_hf_to_gguf.py instead"
        )
    return PRE_TOKENIZERS[key]


def _describe(part: Mapping[str, Any]) -> str:
    kind = part["type"]
    if kind == "Digits":
        return "Digits:individual" if part["individual_digits"] else "Digits"
    if kind == "ByteLevel":
        prefix = ":prefix" if part["add_prefix_space"] else ""
        return f"ByteLevel{':regex' if part['use_regex'] else ''}{prefix}"
    if kind == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
        return f"Split:{part['pattern'].get('Regex', part['pattern'])}"
    return kind


def _check_family(config: Mapping[str, Any], format: str) -> None:
    family = str(config["model_type"])
    if family not in FAMILIES:
        raise ExportError(
            f"family {family!r} cannot be converted to GGUF; supported: {', '.join(FAMILIES)}; the merged folder is "
            "complete, convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    if config.get("use_sliding_window"):
        raise ExportError("a model with a sliding window cannot be converted; use llama.cpp's convert_hf_to_gguf.py")
    scaling = rope(config)["rope_type"]
    if scaling not in ("default", "llama3"):
        raise ExportError(f"rope scaling {scaling!r} cannot be converted; use llama.cpp's convert_hf_to_gguf.py")
    sizes = {key: int(config[key]) for key in ("hidden_size", "intermediate_size")}
    sizes["heads x head_dim"] = int(config["num_attention_heads"]) * head_dim(config)
    odd = {key: size for key, size in sizes.items() if size % QUANT_BLOCK}
    if format == "q8_0" and odd:
        raise ExportError(f"q8_0 needs rows that are multiples of {QUANT_BLOCK}, but the model has {odd}; choose f16")


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the width of one attention head."""
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary settings, from either of the two places where transformers has written them."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    return {"rope_theta": config.get("rope_theta", 10_000.0), "rope_type": "default"} | settings


def _add_architecture(writer: Any, config: Mapping[str, Any], gguf: ModuleType) -> None:
    writer.add_type("model")
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or config["num_attention_heads"]))
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_rope_dimension_count(head_dim(config))
    settings = rope(config)
    writer.add_rope_freq_base(float(settings["rope_theta"]))
    if settings["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_rope_factors(settings, head_dim(config)))


def llama3_rope_factors(settings: Mapping[str, Any], width: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Return [width / 2] divisors of the rotary frequencies: 1 for short waves, `factor` for long ones, smooth between.

    Source: Llama 3.1 (transformers, modeling_rope_utils, rope_type "llama3").
    """
    factor, low, high = (float(settings[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(settings["original_max_position_embeddings"])
    factors: list[float] = []
    for index in range(0, width, 2):
        wavelength = 2 * math.pi * float(settings["rope_theta"]) ** (index / width)
        smooth = (context / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def _add_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, rows: int, gguf: ModuleType) -> str:
    """Add tokens, their types, merges, special ids and the chat template; return the pre-tokenizer's name."""
    pre_tokenizer = pre_tokenizer_name(tokenizer)
    kinds = gguf.TokenType
    texts = [f"[PAD{index}]" for index in range(rows)]
    types = [kinds.UNUSED] * rows
    for token, index in tokenizer.get_vocab().items():
        if index >= rows:
            raise ExportError(f"token {token!r} has id {index}, but the embedding has {rows} rows")
        texts[index], types[index] = token, kinds.NORMAL
    for index, added in cast(Mapping[int, Any], cast(Any, tokenizer).added_tokens_decoder).items():
        texts[index] = added.content
        # a control token of another type is read as text, and the model sees pieces of it
        types[index] = kinds.CONTROL if added.special else kinds.USER_DEFINED
    merges: list[Any] = json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(int(cast(int, tokenizer.eos_token_id)))
    for other in sorted(turn_end_ids(tokenizer) - {cast(int, tokenizer.eos_token_id)})[:1]:
        writer.add_eot_token_id(other)  # a chat turn may end with another token than a document
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(int(cast(int, tokenizer.bos_token_id)))
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(int(cast(int, tokenizer.pad_token_id)))
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(int(cast(int, tokenizer.unk_token_id)))
    # what the tokenizer does, not what its settings say
    adds_bos = tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    writer.add_add_bos_token(adds_bos)
    if not isinstance(tokenizer.chat_template, str):
        raise ExportError("the merged folder has no single chat template; merge again")
    writer.add_chat_template(tokenizer.chat_template)
    return pre_tokenizer


def _add_provenance(writer: Any, provenance: Mapping[str, str], format: Format, gguf: ModuleType) -> None:
    kinds = {"f16": gguf.LlamaFileType.MOSTLY_F16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    writer.add_file_type(kinds[format])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_name(provenance.get("name", "edge_rl export"))
    if provenance.get("licence"):
        writer.add_license(provenance["licence"].lower())
    for key, value in provenance.items():
        writer.add_string(f"edge_rl.{key}", value)


def _add_tensors(writer: Any, folder: Path, config: Mapping[str, Any], format: Format, gguf: ModuleType) -> int:
    count = 0
    for name, tensor in _stored_tensors(folder):
        target = gguf_name(name)
        if target == "output.weight" and config.get("tie_word_embeddings"):
            continue  # llama.cpp takes the embedding as the head where there is no output.weight
        if config["model_type"] == "llama":
            heads = {"attn_q": config["num_attention_heads"], "attn_k": config.get("num_key_value_heads")}
            kind = target.split(".")[-2]
            if kind in heads:
                tensor = halves_to_interleaved(tensor, int(heads[kind] or config["num_attention_heads"]))
        values = tensor.float().numpy()
        if not np.isfinite(values).all():
            raise ExportError(f"{name} has values that are not finite")
        if values.ndim == 1:
            writer.add_tensor(target, values)
        elif format == "f16":
            largest = float(np.abs(values).max())
            if largest > FLOAT16_MAX:
                raise ExportError(
                    f"{name} holds {largest:.3g}, beyond float16 ({FLOAT16_MAX:.0f}); f16 would make it infinite, "
                    "export q8_0 instead"
                )
            writer.add_tensor(target, values.astype(np.float16))
        else:
            kind8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, gguf.quants.quantize(values, kind8), raw_dtype=kind8)
        count += 1
    return count


def halves_to_interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return rows of q or k reordered per head from HF's rotary halves to llama.cpp's pairs (0,1)(2,3)...

    Works on [out, in] matrices and [out] biases. Example, one head of 4 rows: 0 1 2 3 -> 0 2 1 3.
    """
    rows = weight.shape[0]
    split = weight.reshape(num_heads, 2, rows // num_heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape).contiguous()


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor.

    Raises: ExportError for a tensor that is not in the table.
    """
    if name in _OUTER_TENSORS:
        return _OUTER_TENSORS[name]
    parts = name.split(".")
    kind = ".".join(parts[3:-1])
    if name.startswith("model.layers.") and kind in _TENSORS:
        return f"blk.{parts[2]}.{_TENSORS[kind]}.{parts[-1]}"
    raise ExportError(f"tensor {name} has no place in a GGUF of this family")


def _stored_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with cast(Any, safe_open(path, framework="pt")) as file:
            names: list[str] = file.keys()
            for name in names:
                yield name, file.get_tensor(name)
