"""edge_rl: make a small language model better at your task on your one GPU, and prove it.

Sample -> Prompt -> Group of K Rollouts -> Verdict, Reward -> advantage -> one step on the adapter -> evaluation -> GGUF.

    edge_rl.load_samples(path)                               samples of a JSONL file
    edge_rl.verify(kind, completion, answer, **options)      judge one completion
    edge_rl.train(config)                                    edge_rl.config.resolve(...) gives the config
    edge_rl.evaluate(run_dir, ...)   edge_rl.export(run_dir, ...)

Public names are loaded when they are first used, so `import edge_rl` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_rl.data.seeds import load_samples
    from edge_rl.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        EdgeRLError,
        EngineError,
        ExportError,
        MissingExtraError,
        ModelError,
        SandboxError,
        VerifierError,
    )
    from edge_rl.eval import evaluate
    from edge_rl.export import export
    from edge_rl.train import train
    from edge_rl.types import (
        Author,
        Engine,
        Estimate,
        EvalReport,
        Execution,
        ExecutionStatus,
        GenerationRequest,
        Group,
        Hint,
        HintKind,
        Interpreter,
        Prompt,
        Reward,
        Rollout,
        Sample,
        ScoredGroup,
        Segment,
        Session,
        Split,
        StepReport,
        StopReason,
        TraceSegment,
        Verdict,
        Verifier,
    )
    from edge_rl.verify import judge as verify

__all__ = [
    "Author",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EdgeRLError",
    "Engine",
    "EngineError",
    "Estimate",
    "EvalReport",
    "Execution",
    "ExecutionStatus",
    "ExportError",
    "GenerationRequest",
    "Group",
    "Hint",
    "HintKind",
    "Interpreter",
    "MissingExtraError",
    "ModelError",
    "Prompt",
    "Reward",
    "Rollout",
    "Sample",
    "SandboxError",
    "ScoredGroup",
    "Segment",
    "Session",
    "Split",
    "StepReport",
    "StopReason",
    "TraceSegment",
    "Verdict",
    "Verifier",
    "VerifierError",
    "evaluate",
    "export",
    "load_samples",
    "train",
    "verify",
]

_HOMES = {
    "evaluate": "edge_rl.eval",
    "export": "edge_rl.export",
    "load_samples": "edge_rl.data.seeds",
    "train": "edge_rl.train",
    "verify": "edge_rl.verify",
}
"""Function -> module that it is loaded from; `train`, `export` and `verify` are modules that can be called."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'edge_rl' has no attribute {name!r}; public names: {', '.join(__all__)}")
    home = _HOMES.get(name) or ("edge_rl.errors" if name.endswith("Error") else "edge_rl.types")
    module = importlib.import_module(home)
    return module if home == f"edge_rl.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
