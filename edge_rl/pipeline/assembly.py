"""Build the stages of a run from its configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from edge_rl.config import Config
from edge_rl.data.prompts import build_prompt
from edge_rl.data.seeds import load_samples
from edge_rl.data.shots import choose_examples
from edge_rl.errors import DataError
from edge_rl.evaluation.evaluator import evaluate
from edge_rl.rollout.collector import Collector
from edge_rl.rollout.engines.hf import HfEngine
from edge_rl.sandbox import AnyInterpreter, make_interpreter
from edge_rl.scoring.scorer import Scorer, gold_check
from edge_rl.types import Engine, EvalReport, Interpreter, Prompt, Sample, Split, derive_seed
from edge_rl.weights.adapters import attach_adapter
from edge_rl.weights.loading import load_base, turn_end_ids
from edge_rl.weights.packed import pack_linears
from edge_rl.weights.scratch import ScratchModel, copy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of a run by split, gold-checked."""

    train: tuple[Sample, ...]
    validation: tuple[Sample, ...]
    test: tuple[Sample, ...]

    @property
    def hinted(self) -> tuple[Sample, ...]:
        """Training samples that carry a trace."""
        return tuple(sample for sample in self.train if sample.trace)

    @property
    def by_id(self) -> dict[str, Sample]:
        """All samples by id."""
        return {sample.id: sample for sample in (*self.train, *self.validation, *self.test)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The stages of a run, built."""

    config: Config
    samples: Samples
    model: PeftModel
    """Base with the adapter that is trained."""
    tokenizer: Any
    """A transformers tokenizer; what transformers declares of it lacks eos_token_id and more that the stages use."""
    scratch: ScratchModel
    """The engine's copy of the model."""
    engine: HfEngine
    interpreter: AnyInterpreter
    """Runs until it is closed: `with parts.interpreter`."""
    scorer: Scorer

    def prompts(self, samples: Sequence[Sample], *, shots: int = 0) -> list[Prompt]:
        """Return the prompts of samples, hint-free, with `shots` worked examples each."""
        seed = self.config.run.seed
        return [
            build_prompt(
                sample,
                self.tokenizer,
                system=self.config.data.system,
                examples=choose_examples(sample, self.samples.hinted, shots, seed=seed) if shots else (),
                think=self.config.data.think == "on",
            )
            for sample in samples
        ]

    def collector_for(self, engine: Engine) -> Collector:
        """Return a collector that differs from the run's in its engine only."""
        return Collector(
            engine,
            self.interpreter,
            self.tokenizer,
            self.config.rollout,
            seed=self.config.run.seed,
            stop_token_ids=turn_end_ids(self.tokenizer),
        )

    def measure(
        self,
        name: str,
        samples: Sequence[Sample],
        num_samples: int,
        *,
        num_at_8: int = 0,
        adapter: Path | None = None,
        engine: Engine | None = None,
    ) -> EvalReport:
        """Return the evaluation of an adapter (None: the base) on held-out samples, or of another engine as it is.

        The draws depend on the run's seed and the question, not on the name: checkpoints are compared on common draws.
        """
        if engine is None:
            self.engine.load_adapter(adapter, policy_version=0)
        collector = self.collector_for(engine or self.engine)
        settings = self.config.evaluation
        return evaluate(
            name,
            self.prompts(samples),
            num_samples=num_samples,
            num_at_8=num_at_8,
            collect=lambda prompts, n: collector.sample(prompts, n, name="evaluation"),
            judge=self.scorer.judge,
            resamples=settings.bootstrap,
            seed=derive_seed(self.config.run.seed, "bootstrap") % 2**32,
        )


def load_split_samples(config: Config, interpreter: Interpreter | None = None) -> Samples:
    """Return the samples of the configured file, each accepted by its own verifier.

    Without an interpreter, samples whose verifier runs code are not checked.

    Raises: DataError for a missing file, a bad row, a gold answer that its verifier rejects, or an empty split.
    """
    samples = load_samples(Path(config.data.path))
    gold_check(samples, interpreter)
    split = {name: tuple(sample for sample in samples if sample.split is name) for name in Split}
    for name in Split:
        if not split[name]:
            raise DataError(f"{config.data.path}: no sample has split {name.value!r}; every split is needed")
    test = split[Split.TEST][: config.evaluation.max_questions]
    return Samples(train=split[Split.TRAIN], validation=split[Split.VALIDATION], test=test)


def device_of_machine() -> torch.device:
    """Return the device that a run uses: the first CUDA GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def assemble(config: Config) -> Parts:
    """Return the stages of a run.

    Raises: ConfigError, DataError, ModelError or SandboxError, each with what to do.
    """
    interpreter = make_interpreter(timeout_s=config.rollout.tool_timeout_s)
    samples = load_split_samples(config, interpreter)
    loaded: tuple[PreTrainedModel, Any] = load_base(config.model, device_of_machine())
    base, tokenizer = loaded
    plain = copy_of(base)
    model = attach_adapter(base, config.model, derive_seed(config.run.seed, "adapter"))
    pack_linears(model, keep_weight=True, is_wanted=lambda name: name.endswith(".base_layer"))
    scratch = ScratchModel(plain, model)
    engine = HfEngine(scratch.model, scratch.load, slots=config.rollout.slots)
    scorer = Scorer(samples.by_id, config.scoring, interpreter=interpreter, policy=config.model.name)
    parts = Parts(
        config=config,
        samples=samples,
        model=model,
        tokenizer=tokenizer,
        scratch=scratch,
        engine=engine,
        interpreter=interpreter,
        scorer=scorer,
    )
    _check_lengths(parts, base.config.get_text_config().max_position_embeddings)
    return parts


def _check_lengths(parts: Parts, limit: int) -> None:
    """Refuse a question whose prompt and longest completion the model cannot hold; nothing is cut in silence."""
    room = limit - parts.config.rollout.max_tokens
    prompts = parts.prompts(tuple(parts.samples.by_id.values()))
    most_shots = max(parts.config.data.shots, default=0)
    if most_shots:
        prompts += parts.prompts(parts.samples.train, shots=most_shots)
    long = [prompt for prompt in prompts if len(prompt.token_ids) > room]
    if long:
        names = ", ".join(f"{prompt.sample_id} ({len(prompt.token_ids)} tokens)" for prompt in long[:3])
        raise DataError(
            f"{len(long)} prompts leave no room for rollout.max_tokens = {parts.config.rollout.max_tokens} in the model's "
            f"{limit} tokens: {names}; shorten them or lower rollout.max_tokens"
        )
