"""The host's end of a session against a scripted other end: frames, caps, clock. No child process."""

import json
import os
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from edge_rl.errors import SandboxError
from edge_rl.sandbox.inside.worker import HEADER, read_body, write_frame
from edge_rl.sandbox.limits import Limits, explain_exit
from edge_rl.sandbox.session import Process, ProcessSession
from edge_rl.types import Execution, ExecutionStatus

Answer = Callable[[int, int, dict[str, Any]], None]
"""(channel, stdout, request) -> None: what the other end does with a request."""


@pytest.fixture
def run(tmp_path: Path) -> Generator[Callable[[Answer, str], Execution]]:
    threads: list[threading.Thread] = []

    def run_against(answer: Answer, code: str = "") -> Execution:
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        for descriptor in (out_read, err_read):
            os.set_blocking(descriptor, False)
        scratch = tmp_path / "scratch"
        scratch.mkdir()

        def serve() -> None:
            request = read_body(theirs.fileno(), theirs.recv(HEADER.size))
            answer(theirs.fileno(), out_write, request)
            killed.wait()
            theirs.close()

        killed = threading.Event()
        process = Process(channel=ours, stdout=out_read, stderr=err_read, scratch=scratch, kill=killed.set)
        session = ProcessSession(lambda: process, Limits(timeout_s=2, output_bytes=10))
        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        try:
            return session.run(code)
        finally:
            session.close()
            threads[-1].join()
            for descriptor in (out_write, err_write):
                os.close(descriptor)

    yield run_against


def reply(channel: int, request: dict[str, Any], **fields: Any) -> None:
    write_frame(channel, {"nonce": request["nonce"], "status": "ok", "error": "", **fields})


def test_run_returns_output_and_status(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, request["code"].encode())
        reply(channel, request, status="error", error="ValueError: no")

    execution = run(answer, "hello")
    assert (execution.status, execution.stdout, execution.error) == ("error", "hello", "ValueError: no")


def test_output_is_cut_between_characters(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, "é😀😀😀".encode())  # 2 + 4 + 4 + 4 bytes; 10 are kept
        reply(channel, request)

    execution = run(answer, "")
    assert (execution.status, execution.stdout) == (ExecutionStatus.TRUNCATED, "é😀😀")


def test_output_cut_inside_a_character_loses_only_that(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, "12345678😀9".encode())  # 8 + 2 of 4 bytes
        reply(channel, request)

    assert run(answer, "").stdout == "12345678"


def test_output_of_exactly_the_limit_is_not_truncated(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, b"0123456789")
        reply(channel, request)

    assert run(answer, "").status is ExecutionStatus.OK


def test_bytes_that_are_no_utf8_are_replaced(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, b"\xffa")
        reply(channel, request)

    assert run(answer, "").stdout == "\ufffda"


@pytest.mark.parametrize(
    "body",
    [
        b'{"nonce": "00", "status": "ok", "error": ""}',  # of another call
        b'{"status": "ok", "error": ""}',
        b'["ok"]',
        b"not json",
        b"[" * 20_000,
    ],
)
def test_forged_reply_is_refused(run: Callable[[Answer, str], Execution], body: bytes) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(channel, HEADER.pack(len(body)) + body)

    assert run(answer, "").status is ExecutionStatus.DENIED


def test_reply_with_an_unknown_status_is_refused(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        reply(channel, request, status="excellent")

    assert run(answer, "").status is ExecutionStatus.DENIED


def test_reply_of_absurd_length_is_refused_before_it_is_read(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(channel, HEADER.pack(0xFFFFFFFF))

    assert run(answer, "").status is ExecutionStatus.DENIED


def test_silence_is_a_timeout_and_keeps_the_output(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        os.write(stdout, b"started")

    execution = run(answer, "")
    assert (execution.status, execution.stdout) == (ExecutionStatus.TIMEOUT, "started")
    assert execution.seconds >= 2


def test_failed_setup_is_an_error_of_ours(run: Callable[[Answer, str], Execution]) -> None:
    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        write_frame(channel, {"failed": "OSError: no"})

    with pytest.raises(SandboxError, match="OSError: no"):
        run(answer, "")


def test_request_carries_any_text(run: Callable[[Answer, str], Execution]) -> None:
    seen: list[str] = []

    def answer(channel: int, stdout: int, request: dict[str, Any]) -> None:
        seen.append(request["code"])
        reply(channel, request)

    run(answer, "\ud800 \x00 \n é")
    assert seen == ["\ud800 \x00 \n é"]
    assert json.loads(json.dumps(seen)) == seen


@pytest.mark.parametrize(
    ("code", "status", "word"),
    [
        (0, "ok", ""),
        (3, "error", "SystemExit: 3"),
        (77, "error", "MemoryError"),
        (-9, "error", "SIGKILL"),
        (-11, "error", "SIGSEGV"),
        (-24, "timeout", "CPU"),
        (-31, "denied", "SIGSYS"),
    ],
)
def test_explain_exit(code: int, status: str, word: str) -> None:
    found, error = explain_exit(code)
    assert found == status
    assert word in error
    assert (error == "") == (status == "ok")


def test_limits_refuse_what_cannot_work() -> None:
    with pytest.raises(SandboxError, match="timeout_s"):
        Limits(timeout_s=0)
    with pytest.raises(SandboxError, match="memory_bytes"):
        Limits(memory_bytes=1 << 20)


def test_cpu_limit_grows_with_the_timeout() -> None:
    assert Limits(timeout_s=1).cpu_s == 60
    assert Limits(timeout_s=10).cpu_s == 120
