"""The loop of one session: take code, run it, report. Knows the frame format and nothing else.

Runs in the confined child together with the code it serves, so nothing here is a boundary: the kernel is. A frame is
4 bytes of length (big endian) and that much JSON. A reply repeats the nonce of its request, so that code cannot leave
a reply behind for a later call.
"""

import json
import os
import struct
import sys
import types
from typing import Any, NoReturn

HEADER = struct.Struct(">I")
MAX_ERROR_CHARS = 2_000
EXIT_OUT_OF_MEMORY = 77
BLOCKED_MODULES = frozenset({"ctypes", "_ctypes"})


def serve(channel: int) -> NoReturn:
    """Answer requests on a descriptor until its other end closes; never returns."""
    mains = [_fresh_main()]
    number = 0
    while header := os.read(channel, HEADER.size):
        request = read_body(channel, header)
        number += 1
        last = bool(request.get("last"))
        try:
            status, error = _run(request["code"], mains[0], f"<call {number}>")
            if last:
                late = _finish(mains)
                status, error = late if late and status == "ok" else (status, error)
            reply = {"nonce": request["nonce"], "status": status, "error": error}
            _flush()
            write_frame(channel, reply)
        except MemoryError:
            os._exit(EXIT_OUT_OF_MEMORY)
        if last:
            break
    os._exit(0)


def _run(code: str, main: dict[str, Any], name: str) -> tuple[str, str]:
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    try:
        exec(compile(code, name, "exec", dont_inherit=True), main)  # noqa: S102 - this is the place for it
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        return _explain(error)
    return "ok", ""


def _finish(mains: list[dict[str, Any]]) -> tuple[str, str] | None:
    # What the end of a program would run (threads, exit handlers, finalisers) still belongs to the call.
    import atexit
    import gc
    import threading

    def clear() -> None:
        # As at the end of a program: the collector runs finalisers while the globals they use are still there.
        sys.modules.pop("__main__", None)
        mains.clear()
        gc.collect()

    for step in (getattr(threading, "_shutdown"), getattr(atexit, "_run_exitfuncs"), clear):  # noqa: B009
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - see _run
            return _explain(error)
    return None


def _explain(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "ok", ""
        return "error", _one_line(f"SystemExit: {_text(error.code)}")
    status = "denied" if _was_denied(error) else "error"
    message = _text(error)
    name = type(error).__name__
    return status, _one_line(f"{name}: {message}" if message else name)


def _was_denied(error: BaseException | None) -> bool:
    for _ in range(8):
        if error is None:
            return False
        if isinstance(error, PermissionError):
            return True
        if isinstance(error, ImportError) and error.name in BLOCKED_MODULES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _text(value: object) -> str:
    try:
        return str(value)[: 4 * MAX_ERROR_CHARS]
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - __str__ is the code's own
        return f"<unprintable: {type(error).__name__}>"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR_CHARS else line[:MAX_ERROR_CHARS] + " ..."


def _fresh_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    return module.__dict__


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
        except (ValueError, OSError, AttributeError):
            continue  # the code closed or replaced it: nothing is left to flush


def write_frame(channel: int, message: dict[str, Any]) -> None:
    """Write one message completely."""
    body = json.dumps(message).encode("ascii")
    data = HEADER.pack(len(body)) + body
    while data:
        data = data[os.write(channel, data) :]


def read_body(channel: int, header: bytes) -> dict[str, Any]:
    """Read the rest of a message, of which `header` has been read already.

    Raises: EOFError if the other end closes before its end.
    """
    header += _read_exactly(channel, HEADER.size - len(header))
    return json.loads(_read_exactly(channel, HEADER.unpack(header)[0]))


def _read_exactly(channel: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(channel, min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
