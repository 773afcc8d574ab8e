"""Mutations of the sandbox: each must be noticed by the named test."""

SECCOMP = "edge_rl/sandbox/inside/seccomp.py"
SESSION = "edge_rl/sandbox/session.py"
SCRATCH = "edge_rl/sandbox/scratch.py"
LIMITS = "edge_rl/sandbox/limits.py"
OF_SECCOMP = "tests/unit/sandbox/test_seccomp.py"
OF_SESSION = "tests/unit/sandbox/test_session.py"
OF_SCRATCH = "tests/unit/sandbox/test_scratch.py"
CONTRACT = "tests/contract/test_sandbox.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (SECCOMP, '"execve": (59, 221)', '"execve": (60, 221)', OF_SECCOMP),
    (SECCOMP, "_PROT_EXEC = 4", "_PROT_EXEC = 8", OF_SECCOMP),
    (SECCOMP, "_NEWEST_KNOWN = 462", "_NEWEST_KNOWN = 463", OF_SECCOMP),
    (SECCOMP, "_CLONE_THREAD = 0x00010000", "_CLONE_THREAD = 0x00000011", OF_SECCOMP),
    (SECCOMP, "_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF", "_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0x1", OF_SECCOMP),
    (SECCOMP, "_statement(_RETURN, _RET_KILL_PROCESS)", "_statement(_RETURN, _RET_ALLOW)", OF_SECCOMP),
    (SECCOMP, "len(block) - index, 0, number)", "len(block) - index - 1, 0, number)", OF_SECCOMP),
    (SECCOMP, "(_AT_LEAST, len(body) + 2, 0, number)", "(_AT_LEAST, len(body) + 1, 0, number)", OF_SECCOMP),
    (SECCOMP, "_argument(4, high=True)", "_argument(4)", OF_SECCOMP),
    (SECCOMP, "[_allow() if truncate_is_covered else _deny()]", "[_allow()]", OF_SECCOMP),
    (SESSION, 'message.get("nonce") == self.nonce and ', "", OF_SESSION),
    (SESSION, "if length > _MAX_REPLY_BYTES:", "if length > 1 << 40:", OF_SESSION),
    (SESSION, "self.is_cut = self.is_cut or len(data) > room", "self.is_cut = self.is_cut or len(data) >= room", OF_SESSION),
    (SESSION, "self.kept += data[:room]", "self.kept += data", OF_SESSION),
    (SCRATCH, "total > max_bytes or entries > max_entries", "total > max_bytes", OF_SCRATCH),
    (SCRATCH, "512 * entry", "1 * entry", OF_SCRATCH),
    (SCRATCH, "if depth > _MAX_DEPTH:", "if depth > 10 * _MAX_DEPTH:", OF_SCRATCH),
    (LIMITS, "int(12 * self.timeout_s)", "int(self.timeout_s)", OF_SESSION),
    (LIMITS, "if code == -signal.SIGXCPU:", "if code == -signal.SIGSYS - 1:", OF_SESSION),
    ("edge_rl/sandbox/inside/server.py", "os.environ.clear()", "pass", f"{CONTRACT}::test_environment_is_empty_of_the_host"),
    ("edge_rl/sandbox/inside/server.py", "    os.closerange(_FRAME_DESCRIPTOR + 1, 4096)\n", "", f"{CONTRACT}::test_no_descriptor_is_inherited"),
    ("edge_rl/sandbox/inside/worker.py", '" ".join(text.split())', "text", f"{CONTRACT}::test_error_is_one_line_and_the_session_goes_on"),
    ("edge_rl/sandbox/inside/confine.py", "resource.RLIMIT_FSIZE: (file_bytes, file_bytes),", "", f"{CONTRACT}::test_file_size_is_bounded"),
]  # fmt: skip
