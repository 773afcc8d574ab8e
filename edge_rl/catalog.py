"""Model names: where weights come from, and the facts of each model that memory and time plans need.

Knows names and numbers only: loads no weights, reaches no network, imports no heavy package.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge_rl.config import suggest
from edge_rl.errors import ConfigError

MAX_PARAMETERS = 3_300_000_000
"""The "3B class" ends here: models sold as 3B have up to 3.21e9 parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = True
    """Whether the output head is the embedding matrix."""

    @property
    def matrix_parameters(self) -> int:
        """Parameters of all matrices; norms and biases (under 0.1 %) are left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        return self.layers * (attention + mlp) + self.vocab * self.hidden * (1 if self.tied else 2)

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Return the bytes that one token holds in the key-value cache of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value

    def lora_parameters(self, rank: int) -> int:
        """Return the parameters of a LoRA adapter on all linear layers of the blocks: rank * (in + out) each."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        outputs = 2 * (self.hidden + q) + 2 * (self.hidden + kv) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model that can be trained."""

    name: str
    """As the user wrote it."""
    source: Literal["embedded", "hub", "folder"]
    """embedded: converted once from the GGUF of a Python package, no model hub needed."""
    location: str
    """Hub id, or path of a folder. For an embedded model: the hub id it equals."""
    family: str
    """`model_type` of its config: llama, qwen2, qwen3, gemma3_text, smollm3; "" = unknown until it is loaded."""
    parameters: int | None
    """None = unknown until it is loaded."""
    shape: Shape | None
    """None = unknown until it is loaded."""
    licence: str
    """SPDX name or the name of the licence; "" = see its model card."""


def _entry(alias: str, hub_id: str, family: str, parameters: int, shape: Shape, licence: str) -> ModelEntry:
    source = "embedded" if alias == "smollm2-135m" else "hub"
    return ModelEntry(
        name=alias,
        source=source,
        location=hub_id,
        family=family,
        parameters=parameters,
        shape=shape,
        licence=licence,
    )


def _shape(sizes: tuple[int, int, int], attention: tuple[int, int, int], vocab: int, tied: bool = True) -> Shape:
    layers, hidden, intermediate = sizes
    heads, kv_heads, head_dim = attention
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        tied=tied,
    )


_QWEN25_05B = _shape((24, 896, 4864), (14, 2, 64), 151_936)
_QWEN25_15B = _shape((28, 1536, 8960), (12, 2, 128), 151_936)

# alias, hub id, model_type, parameters, ((layers, hidden, intermediate), (heads, kv heads, head dim), vocab), licence
CATALOG: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        _entry(
            "smollm2-135m",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "llama",
            134_515_008,
            _shape((30, 576, 1536), (9, 3, 64), 49_152),
            "Apache-2.0",
        ),
        _entry(
            "smollm2-360m",
            "HuggingFaceTB/SmolLM2-360M-Instruct",
            "llama",
            361_821_120,
            _shape((32, 960, 2560), (15, 5, 64), 49_152),
            "Apache-2.0",
        ),
        _entry(
            "smollm2-1.7b",
            "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            "llama",
            1_711_376_384,
            _shape((24, 2048, 8192), (32, 32, 64), 49_152),
            "Apache-2.0",
        ),
        _entry("qwen-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 494_032_768, _QWEN25_05B, "Apache-2.0"),
        _entry("qwen-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1_543_714_304, _QWEN25_15B, "Apache-2.0"),
        _entry(
            "qwen-3b",
            "Qwen/Qwen2.5-3B-Instruct",
            "qwen2",
            3_085_938_688,
            _shape((36, 2048, 11008), (16, 2, 128), 151_936),
            "Qwen-Research (non-commercial)",
        ),
        _entry("qwen-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2", 494_032_768, _QWEN25_05B, "Apache-2.0"),
        _entry(
            "qwen-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", "qwen2", 1_543_714_304, _QWEN25_15B, "Apache-2.0"
        ),
        _entry(
            "qwen3-0.6b",
            "Qwen/Qwen3-0.6B",
            "qwen3",
            596_049_920,
            _shape((28, 1024, 3072), (16, 8, 128), 151_936),
            "Apache-2.0",
        ),
        _entry(
            "qwen3-1.7b",
            "Qwen/Qwen3-1.7B",
            "qwen3",
            1_720_574_976,
            _shape((28, 2048, 6144), (16, 8, 128), 151_936),
            "Apache-2.0",
        ),
        _entry(
            "r1-1.5b",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            "qwen2",
            1_777_088_000,
            _shape((28, 1536, 8960), (12, 2, 128), 151_936, tied=False),
            "MIT",
        ),
        _entry(
            "llama-1b",
            "meta-llama/Llama-3.2-1B-Instruct",
            "llama",
            1_235_814_400,
            _shape((16, 2048, 8192), (32, 8, 64), 128_256),
            "Llama-3.2-Community",
        ),
        _entry(
            "llama-3b",
            "meta-llama/Llama-3.2-3B-Instruct",
            "llama",
            3_212_749_824,
            _shape((28, 3072, 8192), (24, 8, 128), 128_256),
            "Llama-3.2-Community",
        ),
        _entry(
            "gemma3-270m",
            "google/gemma-3-270m-it",
            "gemma3_text",
            268_098_176,
            _shape((18, 640, 2048), (4, 1, 256), 262_144),
            "Gemma",
        ),
        _entry(
            "gemma3-1b",
            "google/gemma-3-1b-it",
            "gemma3_text",
            999_885_952,
            _shape((26, 1152, 6912), (4, 1, 256), 262_144),
            "Gemma",
        ),
        _entry(
            "smollm3-3b",
            "HuggingFaceTB/SmolLM3-3B",
            "smollm3",
            3_075_098_624,
            _shape((36, 2048, 11008), (16, 4, 128), 128_256),
            "Apache-2.0",
        ),
    )
}


def resolve_model(name: str, *, allow_large: bool = False) -> ModelEntry:
    """Return the entry of an alias, a hub id ("owner/model") or a local folder with a config.json.

    Raises: ConfigError for an unknown name, a folder without a model, or a model over 3B without `allow_large`.
    """
    entry = _find(name)
    if entry.parameters is not None:
        check_size(entry.parameters, name, allow_large=allow_large)
    return entry


def check_size(parameters: int, name: str, *, allow_large: bool) -> None:
    """Refuse a model over the 3B class.

    Raises: ConfigError, with the size and the way to override.
    """
    if parameters > MAX_PARAMETERS and not allow_large:
        raise ConfigError(
            f"model {name} has {parameters / 1e9:.1f}B parameters; at most 3B are supported; choose a smaller one "
            f"({', '.join(CATALOG)}) or pass --allow-large"
        )


def _find(name: str) -> ModelEntry:
    if name in CATALOG:
        return CATALOG[name]
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(name, folder)
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        if "/" in name:
            raise ConfigError(f"model {name!r}: no such folder; give an alias ({', '.join(CATALOG)}), hub id or folder")
        raise ConfigError(f"unknown model {name!r}; {suggest(name.lower(), list(CATALOG))}")
    for entry in CATALOG.values():
        if entry.location.lower() == name.lower():
            return ModelEntry(
                name=name,
                source="hub",
                location=entry.location,
                family=entry.family,
                parameters=entry.parameters,
                shape=entry.shape,
                licence=entry.licence,
            )
    return ModelEntry(
        name=name,
        source="hub",
        location=name,
        family="",
        parameters=_parameters_in_name(name),
        shape=None,
        licence="",
    )


def _parameters_in_name(name: str) -> int | None:
    """A size such as "7B" in the name of an unknown hub id; refusing on it spares a download of many gigabytes."""
    found = re.search(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", name.split("/")[-1].lower())
    return round(float(found[1]) * (1e9 if found[2] == "b" else 1e6)) if found else None


def _from_folder(name: str, folder: Path) -> ModelEntry:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"model folder {name} has no config.json; give the folder that save_pretrained wrote")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shape = shape_of_config(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    counted = _stored_parameters(folder)
    return ModelEntry(
        name=name,
        source="folder",
        location=str(folder),
        family=str(config.get("model_type", "")),
        parameters=counted or (shape.matrix_parameters if shape else None),
        shape=shape,
        licence="",
    )


def shape_of_config(config: dict[str, Any]) -> Shape | None:
    """Return the sizes in the content of a config.json; None where it names them otherwise."""
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if any(config.get(key) is None for key in keys):
        return None
    layers, hidden, intermediate, heads, vocab = (int(config[key]) for key in keys)
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=vocab,
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _stored_parameters(folder: Path) -> int | None:
    """Count the values in the headers of safetensors files; None where there are none or values are packed."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < 100_000_000:
                raise ConfigError(f"{path} is no safetensors file; download it again")
            header: dict[str, Any] = json.loads(file.read(length))
        for tensor, facts in header.items():
            if tensor == "__metadata__":
                continue
            if facts["dtype"] not in ("F64", "F32", "F16", "BF16"):
                return None
            count = 1
            for size in facts["shape"]:
                count *= size
            total += count
    return total or None
