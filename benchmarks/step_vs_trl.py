"""One GRPO step of edge_rl beside one of TRL's GRPOTrainer: same model, adapter, prompts, group size, cap and dtype.

    python -m benchmarks.step_vs_trl --steps 5

Both sides sample their own completions (temperature 1, no tools), score them with the same function, and take one
optimizer step on all of them. A small noise, the same function of the text on both sides, makes every group live, so
that neither side can save work on groups with equal rewards. Steps alternate in one process; the first of each is not
counted.

TRL 1.15 computes log-probabilities in a Triton kernel, which a CPU does not have. There `TorchLogprobs` takes its
place: the same numbers in plain torch, on the same tokens. Everything else is TRL as it is installed.
"""

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import trl
import tyro
from datasets import Dataset
from huggingface_hub import constants as hub_constants
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging
from trl.trainer import utils as trl_utils
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from edge_rl.config import Config, resolve
from edge_rl.data.seeds import load_samples
from edge_rl.learning.learner import Learner
from edge_rl.pipeline.assembly import assemble, device_of_machine
from edge_rl.scoring.scorer import judge_text
from edge_rl.types import Group, Prompt, Reward, Sample, ScoredGroup, Split, derive_seed
from edge_rl.weights.adapters import attach_adapter, save_adapter
from edge_rl.weights.loading import load_base

NOISE = 0.1
"""Largest addition to a reward; too small to turn a right answer into a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is compared."""

    steps: int = 3
    """Counted steps of each side; one more of each warms up."""
    prompts: int = 4
    """Prompts per step."""
    group_size: int = 8
    """Completions per prompt."""
    max_tokens: int = 96
    """Longest completion."""
    model: str = "smollm2-135m"
    dtype: str = "auto"
    trl_microbatch: int = 8
    """Completions in one forward pass of TRL (its default is 8); accumulated to one optimizer step."""
    threads: int = 0
    """Threads of torch; 0 = its own choice."""
    seed: int = 0
    json: bool = False
    """Print one JSON object instead of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step."""

    seconds: float
    cpu_seconds: float
    """Processor time of all threads: what the step costs where other programs hold the cores."""
    rollout_seconds: float
    """Up to the rewards."""
    tokens: int
    """Completion tokens sampled."""
    completions: int
    live: int
    """Completions with an advantage other than 0."""


@dataclass(kw_only=True)
class Work:
    """Prompts and rewards, the same for both sides."""

    settings: Settings
    samples: list[Sample]
    by_id: dict[str, Sample] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {sample.id: sample for sample in self.samples}

    def config(self) -> Config:
        """Return the configuration of a run that does what TRL does: no tools, advantages over the group's deviation."""
        settings = self.settings
        return resolve(
            "default",
            {
                "model.name": settings.model,
                "model.dtype": settings.dtype,
                "rollout.group_size": settings.group_size,
                "rollout.prompts_per_step": settings.prompts,
                "rollout.max_tokens": settings.max_tokens,
                "rollout.chunk_tokens": settings.max_tokens,
                "rollout.max_tool_calls": 0,
                "rollout.temperature": 1.0,
                "rollout.slots": settings.prompts * settings.group_size,
                "learning.advantage": "group",
                "learning.loss": "dapo",
                "learning.kl_coefficient": 0.0,
                "learning.warmup_steps": 0,
                # the recipe's filter looks at correctness, where the noise does not count
                "learning.mixed_groups_only": False,
                # a completion that loops is trained on by TRL too
                "rollout.garble_filter": False,
                "run.seed": settings.seed,
            },
        )

    def reward(self, text: str, sample_id: str) -> float:
        """Return 1 for a right answer and 0 for a wrong one, plus noise that depends on the text only."""
        noise = NOISE * derive_seed(0, sample_id, text) / 2**63
        return float(judge_text(text, self.by_id[sample_id]).correct is True) + noise


class TorchLogprobs:
    """TRL's ChunkedLogProbFunction in plain torch, for devices without Triton."""

    @staticmethod
    def apply(  # noqa: PLR0913  (TRL's signature)
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: Sequence[str],
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        """Return ([N] log-probabilities, [N] entropies where asked, None, None, None)."""
        if bias_V is not None or softcap is not None or scale != 1.0 or not set(outputs) <= {"log_probs", "entropy"}:
            raise NotImplementedError("this stand-in covers what GRPO on a Llama needs")
        logits_NV = (hidden_NH @ weight_VH.T).float() / temperature
        logprobs_N = -torch.nn.functional.cross_entropy(logits_NV, target_N, reduction="none")
        entropy_N = None
        if "entropy" in outputs:
            with torch.no_grad():
                logprobs_NV = logits_NV.log_softmax(-1)
                entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        return logprobs_N, entropy_N, None, None, None


class OurSide:
    """The training loop of edge_rl on the stages of a real run."""

    def __init__(self, work: Work, folder: Path) -> None:
        config = work.config()
        self._parts = assemble(config)
        self._collector = self._parts.collector_for(self._parts.engine)
        self._learner = Learner(
            self._parts.model,
            config.learning,
            temperature=config.rollout.temperature,
            pad_token_id=cast(int, self._parts.tokenizer.pad_token_id),
        )
        self._work = work
        self._adapter_dir = folder / "adapter"
        self._prompts = self._parts.prompts(work.samples)
        self._num_steps = 0
        self._sync()

    def prompts(self, step: int) -> list[Prompt]:
        """Return the prompts of a step."""
        size = self._work.settings.prompts
        return self._prompts[step * size : (step + 1) * size]

    def step(self) -> StepTime:
        """Take one step: sample, score, learn, hand the adapter to the engine."""
        started, cpu_started = time.perf_counter(), time.process_time()
        prompts = self.prompts(self._num_steps)
        groups, carried = self._collector.collect(lambda count: prompts[:count], [], step=self._num_steps)
        assert not carried
        scored = [self._score(group) for group in groups]
        rollout_seconds = time.perf_counter() - started
        metrics = self._learner.update(scored, policy_version=self._num_steps)
        live, completions = int(metrics["learning/live_rollouts"]), sum(len(group.rollouts) for group in groups)
        if live < completions:
            raise RuntimeError(
                f"{completions - live} of {completions} completions were not trained on: no fair comparison"
            )
        self._num_steps += 1
        self._sync()
        return StepTime(
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu_started,
            rollout_seconds=rollout_seconds,
            tokens=sum(rollout.num_policy_tokens for group in groups for rollout in group.rollouts),
            completions=completions,
            live=live,
        )

    def _score(self, group: Group) -> ScoredGroup:
        verdicts = tuple(judge_text(rollout.text, self._work.by_id[group.sample_id]) for rollout in group.rollouts)
        rewards = tuple(Reward(total=self._work.reward(rollout.text, group.sample_id)) for rollout in group.rollouts)
        return ScoredGroup(group=group, verdicts=verdicts, rewards=rewards)

    def _sync(self) -> None:
        save_adapter(self._parts.model, self._adapter_dir)
        self._parts.engine.load_adapter(self._adapter_dir, policy_version=self._num_steps)


class TrlSide(TrainerCallback):
    """TRL's trainer, timed from the first microbatch to the optimizer step; after each of its steps ours has a turn."""

    def __init__(self, work: Work, folder: Path, ours: OurSide) -> None:
        settings, config = work.settings, work.config()
        device = device_of_machine()
        base, tokenizer = load_base(config.model, device)
        self._work = work
        self._ours = ours
        self._started = self._cpu_started = self._rewarded = 0.0
        self._tokens = self._completions = self._live = 0
        self.times: list[StepTime] = []
        self.our_times: list[StepTime] = []
        system = {"role": "system", "content": config.data.system}
        first: Any = [system, {"role": "user", "content": work.samples[0].question}]
        template: Any = tokenizer.apply_chat_template(first, add_generation_prompt=True, tokenize=False)
        if tuple(tokenizer.encode(template, add_special_tokens=False)) != ours.prompts(0)[0].token_ids:
            raise SystemExit(
                "the two sides would read different prompts; compare edge_rl.data.prompts with TRL's template"
            )
        rows = [
            {"prompt": [system, {"role": "user", "content": sample.question}], "sample_id": sample.id}
            for sample in work.samples
        ]
        learning = config.learning
        num_completions = settings.prompts * settings.group_size
        model: Any = attach_adapter(base, config.model, derive_seed(settings.seed, "adapter"))
        self.dtype = str(base.dtype).removeprefix("torch.")
        self.trainer = GRPOTrainer(
            model=model,
            reward_funcs=cast(Any, self.reward),  # TRL declares functions, and a bound method is one
            args=GRPOConfig(
                output_dir=str(folder),
                max_steps=settings.steps + 1,
                per_device_train_batch_size=settings.trl_microbatch,
                gradient_accumulation_steps=num_completions // settings.trl_microbatch,
                num_generations=settings.group_size,
                max_completion_length=settings.max_tokens,
                temperature=1.0,
                beta=0.0,
                loss_type="dapo",
                scale_rewards="group",
                epsilon=learning.clip_low,
                epsilon_high=learning.clip_high,
                learning_rate=learning.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=learning.max_grad_norm,
                weight_decay=0.0,
                use_cpu=device.type == "cpu",
                bf16=base.dtype is torch.bfloat16,
                gradient_checkpointing=False,
                shuffle_dataset=False,
                seed=settings.seed,
                report_to="none",
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[self],
        )
        self.trainer.remove_callback(PrinterCallback)

    def reward(
        self, completions: list[Any], completion_ids: list[list[int]], sample_id: list[str], **_: Any
    ) -> list[float]:
        """Score with TRL's calling convention, and count."""
        texts = [completion[0]["content"] for completion in completions]
        rewards = [self._work.reward(text, sample) for text, sample in zip(texts, sample_id, strict=True)]
        size = self._work.settings.group_size
        for start in range(0, len(rewards), size):
            group = rewards[start : start + size]
            self._live += len(group) if len(set(group)) > 1 else 0
        self._tokens += sum(len(ids) for ids in completion_ids)
        self._completions += len(completions)
        self._rewarded = time.perf_counter()
        return rewards

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._tokens = self._completions = self._live = 0
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the clock, then time one step of ours."""
        self.times.append(
            StepTime(
                seconds=time.perf_counter() - self._started,
                cpu_seconds=time.process_time() - self._cpu_started,
                rollout_seconds=self._rewarded - self._started,
                tokens=self._tokens,
                completions=self._completions,
                live=self._live,
            )
        )
        self.our_times.append(self._ours.step())
        if not self._work.settings.json:
            print(
                f"step {len(self.times) - 1}: {_line('TRL', self.times[-1:])}; {_line('edge_rl', self.our_times[-1:])}"
            )


def measure(settings: Settings) -> dict[str, Any]:
    """Return the medians of both sides and their ratio."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    hub_constants.HF_HUB_DISABLE_TELEMETRY = True
    transformers_logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    needed = settings.prompts * (settings.steps + 1)
    samples = [sample for sample in load_samples(Config().data.path) if sample.split is Split.TRAIN]
    work = Work(settings=settings, samples=[samples[index % len(samples)] for index in range(needed)])
    is_stand_in = device_of_machine().type == "cpu"
    if is_stand_in:
        trl_utils._ChunkedLogProbFunction = TorchLogprobs  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    with tempfile.TemporaryDirectory() as name:
        ours = OurSide(work, Path(name))
        theirs = TrlSide(work, Path(name) / "trl", ours)
        theirs.trainer.train()
    ratio, cpu_ratio = (
        _median(theirs.our_times[1:], unit) / _median(theirs.times[1:], unit) for unit in ("seconds", "cpu_seconds")
    )
    return {
        "settings": asdict(settings),
        "dtype": theirs.dtype,
        "trl": trl.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "torch_stand_in_for_triton": is_stand_in,
        "ratio": ratio,
        "cpu_ratio": cpu_ratio,
        "edge_rl": _summary(theirs.our_times[1:]),
        "trl_grpo": _summary(theirs.times[1:]),
    }


def _median(times: Sequence[StepTime], name: str) -> float:
    return statistics.median(float(getattr(step, name)) for step in times)


def _summary(times: Sequence[StepTime]) -> dict[str, Any]:
    return {
        "seconds_per_step": _median(times, "seconds"),
        "cpu_seconds_per_step": _median(times, "cpu_seconds"),
        "rollout_seconds": _median(times, "rollout_seconds"),
        "completion_tokens_per_second": sum(step.tokens for step in times) / sum(step.seconds for step in times),
        "steps": [asdict(step) for step in times],
    }


def _line(name: str, times: Sequence[StepTime]) -> str:
    summary = _summary(times)
    seconds, rollout = summary["seconds_per_step"], summary["rollout_seconds"]
    live, completions = sum(step.live for step in times), sum(step.completions for step in times)
    return (
        f"{name} {seconds:.1f} s (rollout {rollout:.1f} s, rest {seconds - rollout:.1f} s), "
        f"{summary['cpu_seconds_per_step']:.1f} s of processor time, "
        f"{summary['completion_tokens_per_second']:.0f} completion tokens/s, {live} of {completions} completions live"
    )


def main() -> None:
    """Measure and print."""
    settings = tyro.cli(Settings, description=__doc__)
    result = measure(settings)
    if settings.json:
        print(json.dumps(result, indent=1))
        return
    print(f"\nmedian of {settings.steps} steps, {settings.model} {result['dtype']}, {result['threads']} threads")
    for key, name in (("trl_grpo", f"TRL {result['trl']}"), ("edge_rl", "edge_rl")):
        print(_line(name, [StepTime(**step) for step in result[key]["steps"]]))
    print(
        f"edge_rl takes {result['ratio']:.2f} of TRL's time (target: at most 0.33), {result['cpu_ratio']:.2f} in processor time"
    )


if __name__ == "__main__":
    main()
