"""Compare a GGUF in llama.cpp with its merged folder: `python export/check_llama_cpp.py out/merged out/m.gguf --format f16`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from edge_rl.cli import run_door
from edge_rl.weights.llama_cpp import serve
from edge_rl.weights.merging import load_merged
from edge_rl.weights.parity import compare

QUESTIONS = ("What is 12 * 34?", "Name three primes.", "Write a line of Python that prints 7.", "Where is Paris?")


def main(argv: list[str] | None) -> int:
    """Parse, compare, print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--format", default="q8_0", choices=("f16", "q8_0"))
    options = parser.parse_args(argv)
    tokenizer: Any = AutoTokenizer.from_pretrained(options.folder)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    with serve(options.file, slots=1) as server:
        print(compare(server, load_merged(options.folder), tokenizer, prompts, format=options.format))
    return 0


if __name__ == "__main__":
    sys.exit(run_door(lambda _: main(None), None))
