"""The supervised stages of a run: on recorded traces, and on the model's own right answers."""

from pathlib import Path

from edge_rl.data.prompts import encode_trace
from edge_rl.errors import DataError
from edge_rl.offline.rejection import Selection, example_of, select
from edge_rl.offline.sft import SftExample, SupervisedMetrics, fine_tune
from edge_rl.pipeline.assembly import Parts
from edge_rl.pipeline.memory import release_free_memory
from edge_rl.scoring.scorer import judge_text
from edge_rl.types import Rollout, Sample, derive_seed
from edge_rl.weights.adapters import reset_adapter

ONE_VALUE = frozenset(["numeric", "math"])
"""Kinds whose answer is a value that code can print."""


def trace_examples(parts: Parts) -> list[SftExample]:
    """Return the training samples that carry a trace as supervised examples."""
    return [_trace_example(parts, sample) for sample in parts.samples.hinted]


def fine_tune_on_traces(parts: Parts, folder: Path) -> SupervisedMetrics:
    """Train the adapter on the recorded traces; return what was done.

    Raises: DataError where no training sample carries one.
    """
    return fine_tune(
        parts.model,
        parts.tokenizer,
        trace_examples(parts),
        parts.config.warm_start,
        seed=derive_seed(parts.config.run.seed, "warm start") % 2**32,
        output_dir=folder,
    )


def sample_own_answers(parts: Parts, adapter: Path | None) -> Selection:
    """Return what the policy writes of its own for the training questions and is worth imitating."""
    settings = parts.config.rejection
    parts.engine.load_adapter(adapter, policy_version=0)
    collector = parts.collector_for(parts.engine)
    rollouts = collector.sample(parts.prompts(parts.samples.train), settings.samples_per_question, name="rejection")
    verdicts = [parts.scorer.judge(rollout) for rollout in rollouts]
    return select(
        rollouts,
        verdicts,
        per_question=settings.keep_per_question,
        agrees=lambda rollout: code_agrees(rollout, parts.samples.by_id[rollout.prompt.sample_id]),
    )


def fine_tune_on_own_answers(parts: Parts, selection: Selection, folder: Path) -> SupervisedMetrics:
    """Train a fresh adapter on the kept completions and the recorded traces; return what was done.

    Fresh, because what the sampling adapter knows is in what it wrote (CoRT, arXiv:2506.09820, trains the base again).
    Raises: DataError where nothing was kept.
    """
    if not selection.kept:
        fates = ", ".join(f"{count} {fate}" for fate, count in selection.fates.most_common())
        raise DataError(
            f"rejection sampling kept none of {sum(selection.fates.values())} completions ({fates}); use easier questions, "
            "more hinted traces, or rejection.kind=none"
        )
    seed = parts.config.run.seed
    parts.scratch.unload()  # training needs the room of the engine's copy
    release_free_memory()
    reset_adapter(parts.model, derive_seed(seed, "fresh adapter"))
    return fine_tune(
        parts.model,
        parts.tokenizer,
        [*trace_examples(parts), *(example_of(rollout) for rollout in selection.kept)],
        parts.config.rejection,
        seed=derive_seed(seed, "rejection") % 2**32,
        output_dir=folder,
    )


def code_agrees(rollout: Rollout, sample: Sample) -> bool:
    """Return whether what the code printed last is the answer; True where an answer is not a single value."""
    if sample.kind not in ONE_VALUE:
        return True
    lines = rollout.executions[-1].stdout.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return judge_text(f"\\boxed{{{last}}}", sample).correct is True


def _trace_example(parts: Parts, sample: Sample) -> SftExample:
    token_ids, mask = encode_trace(sample, parts.tokenizer)
    prompt = parts.prompts([sample])[0]
    return SftExample(prompt_ids=prompt.token_ids, completion_ids=token_ids, completion_mask=mask)
