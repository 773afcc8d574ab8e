"""What every test gets: no network, nothing of the user's home, offline hubs, at most two torch threads.

Only the cache of the embedded model outlives a session, so that it is converted once.
"""

import os
import socket
import tempfile
from pathlib import Path

import pytest

# Before any test imports torch, transformers or matplotlib: they read these once, when they are imported.
_SESSION_HOME = tempfile.TemporaryDirectory(prefix="edge-rl-tests-")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "WANDB_MODE": "disabled",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
os.environ["HF_HOME"] = str(Path(_SESSION_HOME.name) / "huggingface")


def pytest_configure(config: pytest.Config) -> None:
    cache = config.cache
    assert cache is not None, "the cache plugin of pytest is needed: it keeps the converted embedded model"
    os.environ.setdefault("EDGE_RL_CACHE", str(cache.mkdir("edge-rl")))
    os.environ.setdefault("MPLCONFIGDIR", str(cache.mkdir("matplotlib")))


def pytest_unconfigure(config: pytest.Config) -> None:
    _SESSION_HOME.cleanup()


@pytest.fixture(autouse=True)
def _private_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the home of whoever runs the tests."""
    monkeypatch.setenv("HOME", _SESSION_HOME.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(_SESSION_HOME.name) / ".cache"))


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting beyond this machine fails the test, unless it is marked `network`."""
    if request.node.get_closest_marker("network") is not None:
        return
    connect = socket.socket.connect
    connect_ex = socket.socket.connect_ex

    def guarded_connect(self: socket.socket, address: object) -> None:
        _refuse_remote(self, address)
        connect(self, address)  # pyright: ignore[reportArgumentType]

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        _refuse_remote(self, address)
        return connect_ex(self, address)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)


def _refuse_remote(connection: socket.socket, address: object) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return
    host = str(address[0])  # pyright: ignore[reportUnknownArgumentType]
    if host not in ("localhost", "::1") and not host.startswith("127."):
        pytest.fail(f"this test tried to connect to {address!r}; tests use no network (mark it `network` if it must)")
