"""The supervised stages of a run: on recorded traces, and on the model's own right answers."""

from collections.abc import Sequence
from pathlib import Path

from edge_rl.data.prompts import encode_trace
from edge_rl.errors import DataError
from edge_rl.offline.preference import Pair, make_pairs, prefer
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


def sample_pairs(parts: Parts, sample_ids: Sequence[str], adapter: Path, *, number: int) -> list[Pair]:
    """Return pairs of what the policy writes in round `number`."""
    settings = parts.config.preference
    parts.engine.load_adapter(adapter, policy_version=number)
    samples = [parts.samples.by_id[name] for name in sample_ids]
    collector = parts.collector_for(parts.engine)
    rollouts = collector.sample(parts.prompts(samples), settings.samples_per_question, name=f"preference-{number}")
    return make_pairs(
        rollouts,
        [parts.scorer.judge(rollout) for rollout in rollouts],
        per_question=settings.pairs_per_question,
        max_length_ratio=settings.max_length_ratio,
        seed=derive_seed(parts.config.run.seed, "preference", number),
    )


def prefer_pairs(parts: Parts, pairs: Sequence[Pair], folder: Path, *, number: int) -> SupervisedMetrics:
    """Train the adapter on the pairs of round `number`, against itself as it is now; return what was done.

    Without pairs (all questions solved, or none) the adapter stays as it is.
    """
    if not pairs:
        return SupervisedMetrics(
            num_steps=0, loss_curve=[], learning_rates=[], num_learnt_tokens=0, num_tokens=0, seconds=0.0
        )
    parts.scratch.unload()  # training needs the room of the engine's copy
    release_free_memory()
    return prefer(
        parts.model,
        parts.tokenizer,
        pairs,
        parts.config.preference,
        seed=derive_seed(parts.config.run.seed, "preference", number) % 2**32,
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
