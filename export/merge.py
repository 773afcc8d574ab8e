"""Merge an adapter into its base: `python export/merge.py smollm2-135m runs/<name>/best/adapter out/merged`.

The prompts on which both must agree come from stdin, one a line, or are three built-in ones.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from edge_rl.cli import run_door
from edge_rl.config import ModelConfig
from edge_rl.weights.loading import load_tokenizer
from edge_rl.weights.merging import merge

PROMPTS = ("What is 12 * 34?", "Name three primes.", "Write a line of Python that prints 7.")


def main(argv: list[str] | None) -> int:
    """Parse, merge, print the proof."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="alias, hub id or folder of the base")
    parser.add_argument("adapter", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32.0)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float16", "bfloat16", "float32"))
    options = parser.parse_args(argv)
    config = ModelConfig(name=options.model, rank=options.rank, alpha=options.alpha)
    tokenizer: Any = load_tokenizer(config)
    texts = PROMPTS if sys.stdin.isatty() else tuple(line.strip() for line in sys.stdin if line.strip()) or PROMPTS
    prompts = [tokenizer.encode(text) for text in texts]
    print(merge(config, options.adapter, options.folder, prompts=prompts, dtype=options.dtype))
    return 0


if __name__ == "__main__":
    sys.exit(run_door(lambda _: main(None), None))
