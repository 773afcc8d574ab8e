"""Probe a model on training questions with the engine, sandbox and verifiers that a run would use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_rl.config import Config, recipe_names
from edge_rl.evaluation.probe import Advice, Circumstances, ProbeReport, advise, probe_report
from edge_rl.pipeline.assembly import assemble
from edge_rl.types import Sample, derive_seed
from edge_rl.weights.adapters import load_adapter_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found and what it speaks for."""

    report: ProbeReport
    advice: Advice


def probe_model(config: Config, *, k: int, num_questions: int | None, adapter: Path | None = None) -> Probe:
    """Return the probe of a base, or of an adapter on it, on training questions evenly spread over the file.

    Raises: EdgeRLError for what a user can mend.
    """
    parts = assemble(config)
    with parts.interpreter:
        if adapter is not None:
            # refuses an adapter of another base, rank or scale, which the engine would take without a word
            load_adapter_weights(parts.model, adapter)
        parts.engine.load_adapter(adapter, policy_version=0)
        samples = spread(parts.samples.train, num_questions)
        rollouts = parts.collector_for(parts.engine).sample(parts.prompts(samples), k, name="probe")
        verdicts = [parts.scorer.judge(rollout) for rollout in rollouts]
    report = probe_report(
        rollouts,
        verdicts,
        k=k,
        resamples=config.evaluation.bootstrap,
        seed=derive_seed(config.run.seed, "bootstrap") % 2**32,
    )
    here = Circumstances(
        num_traces=len(parts.samples.hinted),
        has_tools=any(sample.tools for sample in parts.samples.train),
        max_tokens=config.rollout.max_tokens,
        recipes=recipe_names(),
    )
    return Probe(report=report, advice=advise(report, here))


def spread(samples: Sequence[Sample], count: int | None) -> list[Sample]:
    """Return `count` samples evenly spread over their order; all of them where there are no more."""
    count = len(samples) if count is None else min(count, len(samples))
    return [samples[index * len(samples) // count] for index in range(count)]
