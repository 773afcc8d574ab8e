"""Convert a merged folder to GGUF: `python export/to_gguf.py out/merged out/model-q8_0.gguf --format q8_0`."""

import argparse
import sys
from pathlib import Path

from edge_rl.cli import run_door
from edge_rl.weights.gguf import write_gguf


def main(argv: list[str] | None) -> int:
    """Parse, convert, print what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--format", default="q8_0", choices=("f16", "q8_0"))
    parser.add_argument("--base", default="", help="hub id of the base, for the file's metadata")
    parser.add_argument("--licence", default="", help="licence of the base, for the file's metadata")
    options = parser.parse_args(argv)
    provenance = {"base": options.base, "licence": options.licence}
    print(write_gguf(options.folder, options.file, options.format, provenance=provenance))
    return 0


if __name__ == "__main__":
    sys.exit(run_door(lambda _: main(None), None))
