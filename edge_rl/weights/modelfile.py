"""The text files beside an export: a Modelfile for Ollama and a card that says where the weights come from."""

from collections.abc import Mapping, Sequence
from typing import Any

# Ollama wants Go templates; one per family of turn markers
_CHATML = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
_LLAMA3 = """{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>

"""


def modelfile(gguf_name: str, *, vocabulary: Sequence[str], system: str, context: int) -> str:
    """Return a Modelfile: `ollama create NAME -f Modelfile` in the export folder.

    A family whose turn markers are unknown here gets no TEMPLATE; Ollama then reads the one inside the GGUF.
    """
    known = set(vocabulary)
    lines = [f'FROM "./{gguf_name}"']
    if {"<|im_start|>", "<|im_end|>"} <= known:
        template, stops = _CHATML, ["<|im_end|>", "<|im_start|>"]
    elif {"<|start_header_id|>", "<|eot_id|>"} <= known:
        template, stops = _LLAMA3, ["<|eot_id|>", "<|start_header_id|>"]
    else:
        template, stops = "", []
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    if system:
        quoted = system.replace('"""', "'''")
        lines.append(f'SYSTEM """{quoted}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in stops]
    lines += [f"PARAMETER num_ctx {context}", "PARAMETER temperature 1"]
    return "\n".join(lines) + "\n"


def model_card(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a README for the folder: base, licence, how it was trained. No local path, no sample, no secret."""
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    tuned = [f"| {name} | {value} |" for name, value in settings.items()]
    head = "Weights tuned with edge_rl: LoRA, reinforcement learning on verifiable answers, merged into the base."
    licence = "The licence of the base applies to these weights; read its model card before sharing them."
    table = ["| what | value |", "|---|---|"]
    use = "Needs llama.cpp of 2024-08 or newer (the `smollm` pre-tokenizer), or any program built on it."
    parts = [f"# {facts['base']}, tuned", head, "\n".join(table + rows), licence]
    return "\n\n".join([*parts, "## Settings", "\n".join(table + tuned), "## Use", use]) + "\n"
