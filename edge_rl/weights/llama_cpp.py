"""llama.cpp's own server over one GGUF, in a process of its own, and the few calls of it that we need.

The only file that knows the package xllamacpp, and it knows nothing else: token ids and text in, token ids and numbers
out. A crash or a leak of the native code stays in the child. The child serves on the loopback address only and ends when
its standard input closes, that is also when the parent dies in any way.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from edge_rl.errors import ExportError, MissingExtraError, require

START_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 3600.0
"""Both only end a hang: a server that dies closes its connections at once. A shared machine may be very slow."""
SPARE_TOKENS = 16
"""The server ends an answer one token before its slot is full."""


class LlamaServer:
    """A running llama.cpp server."""

    def __init__(self, address: str, *, slots: int) -> None:
        self.address = address
        """Such as "http://127.0.0.1:40123"."""
        self.slots = slots
        """Sequences that it decodes at once."""

    def post(self, path: str, body: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Return the answer to one request.

        Raises: ExportError with the server's own words where it refuses or is gone.
        """
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return cast(dict[str, Any], json.load(response))
        except urllib.error.HTTPError as error:
            raise ExportError(f"llama.cpp refused {path}: {error.read()[:300].decode(errors='replace')}") from error
        except (OSError, ValueError) as error:
            raise ExportError(f"llama.cpp stopped answering {path}: {error}") from error

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens recognised, with the start token if the file asks for one."""
        return self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def greedy(self, token_ids: Sequence[int], max_tokens: int) -> tuple[list[int], list[dict[int, float]]]:
        """Return the greedy continuation and, per position, the logprobs of the most likely tokens.

        Ends before the first character that spans tokens: llama.cpp reports no probabilities for its parts.
        """
        body: dict[str, Any] = {"prompt": list(token_ids), "n_predict": max_tokens, "temperature": 0.0, "n_probs": 10}
        answer = self.post("/completion", body | {"return_tokens": True, "cache_prompt": False})
        tops = [
            {int(top["id"]): float(top["logprob"]) for top in position["top_logprobs"]}
            for position in aligned_probabilities(answer)
        ]
        return answer["tokens"][: len(tops)], tops


def aligned_probabilities(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of `completion_probabilities` that belong to the first tokens of an answer, in order.

    llama.cpp leaves out a token that ends inside a character. Such a token never has an entry, so comparing ids finds the
    first gap for sure; what follows it is not trusted.
    """
    entries: list[dict[str, Any]] = answer.get("completion_probabilities", [])
    aligned: list[dict[str, Any]] = []
    for token, entry in zip(answer["tokens"], entries, strict=False):
        if entry["id"] != token:
            break
        aligned.append(entry)
    return aligned


@contextmanager
def serve(gguf_file: Path, *, slots: int = 16, context: int = 1024, threads: int = 0) -> Generator[LlamaServer]:
    """Run a server over the file for the length of a `with` block; `context` is in tokens per slot, 0 threads = all.

    Raises: MissingExtraError without xllamacpp; ExportError, with llama.cpp's last words, where the file does not load.
    """
    check_installed()
    threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command = [sys.executable, "-m", "edge_rl.weights.llama_cpp", str(Path(gguf_file).resolve())]
    command += ["--slots", str(slots), "--context", str(context), "--threads", str(threads)]
    # the native code writes its log to stdout and stderr alike; the address comes through a file instead
    with tempfile.TemporaryDirectory() as scratch:
        address_file, log_file = Path(scratch) / "address", Path(scratch) / "log"
        with log_file.open("wb") as log:
            child = subprocess.Popen(
                [*command, "--address-file", str(address_file)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *_python_path()])},
            )
        try:
            yield LlamaServer(_wait_for_address(child, address_file, log_file, gguf_file), slots=slots)
        finally:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def check_installed() -> None:
    """Look for xllamacpp without loading its native code.

    Raises: MissingExtraError with the command that installs it.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtraError("xllamacpp is not installed; run: pip install 'edge_rl[export]'")


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [given] if given else []


def _wait_for_address(child: "subprocess.Popen[bytes]", address_file: Path, log_file: Path, gguf_file: Path) -> str:
    deadline = START_TIMEOUT_S
    while not address_file.is_file():
        try:
            code = child.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            deadline -= 0.05
            if deadline > 0:
                continue
            raise ExportError(f"llama.cpp did not load {gguf_file} within {START_TIMEOUT_S:.0f} s") from None
        words = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        raise ExportError(f"llama.cpp does not load {gguf_file} (exit {code}): {' | '.join(words[-3:])[:400]}")
    return address_file.read_text(encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the child: load the file, write the address, serve until standard input closes."""
    parser = argparse.ArgumentParser(description="Serve one GGUF on the loopback address until stdin closes.")
    parser.add_argument("gguf_file", type=Path)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--address-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    xllamacpp = require("xllamacpp", "export")
    params = xllamacpp.CommonParams()
    params.model.path = str(options.gguf_file)
    params.hostnames = ["127.0.0.1"]
    params.n_parallel = options.slots
    params.n_ctx = options.slots * (options.context + SPARE_TOKENS)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_threads_http = options.slots + 2
    params.cache_ram_mib = 0  # the default keeps up to 8 GB of old prompts
    params.fit_params = False
    params.ui = False
    params.warmup = False
    params.verbosity = 1
    server = xllamacpp.Server(params)
    partial = options.address_file.with_suffix(".partial")
    partial.write_text(server.listening_address, encoding="utf-8")
    partial.replace(options.address_file)
    sys.stdin.buffer.read()
    # the native threads may hang in their destructors; there is nothing to save
    os._exit(0)


if __name__ == "__main__":
    main()
