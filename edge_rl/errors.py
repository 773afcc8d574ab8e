"""The errors that a user can act on. Knows nothing of the rest of the package.

EdgeRLError
|- ConfigError          the settings are wrong         (also ValueError)
|- DataError            a sample or record is wrong    (also ValueError)
|- MissingExtraError    an optional package is absent  (also ImportError)
|- ModelError           weights cannot be found, loaded or are not supported
|- EngineError          generation failed
|- SandboxError         code could not be run at all (code that ran and failed is a result, not an error)
|- VerifierError        the verifier, not the completion, failed
|- CheckpointError      cannot save, load or resume
|- ExportError          a merge, a conversion or a check of one failed

A message says where, which value, what was allowed, and what to do. Doors print it without a traceback and exit with 2.
"""

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType


class EdgeRLError(Exception):
    """Base of every error a user can act on."""


class ConfigError(EdgeRLError, ValueError):
    """The settings are wrong."""


class DataError(EdgeRLError, ValueError):
    """A sample or record is wrong."""


class MissingExtraError(EdgeRLError, ImportError):
    """An optional package is absent."""


class ModelError(EdgeRLError):
    """Weights cannot be found, loaded or are not supported."""


class EngineError(EdgeRLError):
    """Generation failed."""


class SandboxError(EdgeRLError):
    """Code could not be run at all."""


class VerifierError(EdgeRLError):
    """The verifier, not the completion, failed."""


class CheckpointError(EdgeRLError):
    """Cannot save, load or resume."""


class ExportError(EdgeRLError):
    """A merge, a conversion or a check of one failed."""


@contextmanager
def boundary(error_class: type[EdgeRLError], where: str) -> Generator[None]:
    """Re-raise anything that escapes as `error_class`, naming the boundary; keep errors already named."""
    try:
        yield
    except EdgeRLError:
        raise
    except Exception as error:
        raise error_class(f"{where}: {type(error).__name__}: {error}") from error


def require(module: str, extra: str) -> ModuleType:
    """Return an optional package, or say how to install it.

    Raises: MissingExtraError if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{module} is not installed; run: pip install 'edge_rl[{extra}]'") from error
