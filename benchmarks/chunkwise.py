"""Chunk-wise rollout beside plain synchronous rollout, and beside plain rollout of twice the batch.

    python benchmarks/chunkwise.py --adapter runs/<name>/best/adapter --max-tokens 192 --chunk-tokens 48

All three decode the same model on the same questions with the run's own engine, sandbox and verifiers, and take the update
on what they collected, with a learning rate so small that the policy stays the same. The third mode is the rival that
a chunk-wise rollout has to beat: where memory allows twice the batch, no chunks are needed.

Printed for each: seconds of rollout and of the whole step per trained group, tokens decoded per slot and decode pass (1 =
no slot ever waits for the longest completion), tokens that cost a further forward pass because they are carried, and the
age of a trained group in steps. The first steps of the chunk-wise mode hold only short groups, so they are not counted.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from edge_rl.config import RolloutConfig, resolve
from edge_rl.data.sampler import Sampler
from edge_rl.learning.learner import Learner
from edge_rl.pipeline.assembly import Parts, assemble
from edge_rl.rollout.collector import Collector
from edge_rl.types import Author, Group, Prompt
from edge_rl.weights.adapters import load_adapter_weights, save_adapter
from edge_rl.weights.loading import turn_end_ids

FROZEN = 1e-12
"""A learning rate at which an update costs what it always costs and changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is compared."""

    adapter: Path | None = None
    """Adapter whose lengths are measured; none = the base."""
    prompts: int = 4
    """Groups that a step trains on."""
    group_size: int = 8
    max_tokens: int = 192
    chunk_tokens: int = 48
    steps: int = 5
    """Counted steps of each mode."""
    warm_up: int = 4
    """Steps before them; with chunks they hold only short groups."""
    seed: int = 0
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """section.key=value, any setting of the tree; may be repeated."""
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to collect."""

    name: str
    prompts: int
    chunk_tokens: int
    groups_under_way: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one mode costs, medians over its steps."""

    mode: str
    rollout_s_per_group: float
    step_s_per_group: float
    tokens_per_slot_pass: float
    extra_forward_share: float
    """Policy tokens of carried groups that cost a forward pass, over trained policy tokens."""
    mean_age: float
    mean_tokens: float
    p95_tokens: int


class Bench:
    """The parts of a run, used for one mode after the other."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self._parts = parts
        self._settings = settings
        learning = parts.config.learning.model_copy(
            update={"learning_rate": FROZEN, "warmup_steps": 0, "mixed_groups_only": False}
        )
        self._learner = Learner(
            parts.model,
            learning,
            temperature=parts.config.rollout.temperature,
            pad_token_id=int(parts.tokenizer.pad_token_id),
        )

    def measure(self, mode: Mode, adapter: Path) -> Measured:
        """Return what a mode costs."""
        settings, parts = self._settings, self._parts
        rollout = parts.config.rollout.model_copy(
            update={"prompts_per_step": mode.prompts, "chunk_tokens": mode.chunk_tokens}
        )
        collector = self._collector(rollout)
        sampler = Sampler([sample.id for sample in parts.samples.train], settings.seed)

        def next_prompts(count: int) -> list[Prompt]:
            return parts.prompts([parts.samples.by_id[name] for name in sampler.next(count)])

        slots = mode.groups_under_way * settings.group_size
        carried: list[Group] = []
        rows: list[dict[str, float]] = []
        lengths: list[int] = []
        for step in range(settings.warm_up + settings.steps):
            parts.engine.load_adapter(adapter, policy_version=step)
            decoded, passes = parts.engine.decoded_tokens, parts.engine.decode_passes
            started = time.monotonic()
            groups, carried = collector.collect(next_prompts, carried, step=step)
            collected = time.monotonic()
            scored = parts.scorer.score(groups)
            fresh = _fresh_tokens(carried, step)
            carried = self._learner.with_old_logprobs(carried, policy_version=step)
            self._learner.update(scored, policy_version=step)
            if step < settings.warm_up:
                continue
            own = [rollout.num_policy_tokens for group in groups for rollout in group.rollouts]
            lengths += own
            rows.append(
                {
                    "rollout": (collected - started) / len(groups),
                    "step": (time.monotonic() - started) / len(groups),
                    "decoded": (parts.engine.decoded_tokens - decoded)
                    / ((parts.engine.decode_passes - passes) * slots),
                    "extra": fresh / sum(own),
                    "age": statistics.fmean(step - group.born for group in groups),
                }
            )
        median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        return Measured(
            mode=mode.name,
            rollout_s_per_group=median["rollout"],
            step_s_per_group=median["step"],
            tokens_per_slot_pass=median["decoded"],
            extra_forward_share=median["extra"],
            mean_age=median["age"],
            mean_tokens=statistics.fmean(lengths),
            p95_tokens=sorted(lengths)[int(0.95 * (len(lengths) - 1))],
        )

    def _collector(self, rollout: RolloutConfig) -> Collector:
        parts = self._parts
        return Collector(
            parts.engine,
            parts.interpreter,
            parts.tokenizer,
            rollout,
            seed=self._settings.seed,
            stop_token_ids=turn_end_ids(parts.tokenizer),
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the three modes and print them."""
    settings = tyro.cli(Settings, args=argv)
    overrides = {
        "rollout.group_size": settings.group_size,
        "rollout.max_tokens": settings.max_tokens,
        "rollout.chunk_tokens": settings.max_tokens,
        "rollout.slots": 2 * settings.prompts * settings.group_size,
        "run.seed": settings.seed,
    }
    parts = assemble(resolve("default", overrides, settings.set))
    modes = [
        Mode(
            name="plain", prompts=settings.prompts, chunk_tokens=settings.max_tokens, groups_under_way=settings.prompts
        ),
        Mode(
            name=f"chunks of {settings.chunk_tokens}",
            prompts=settings.prompts,
            chunk_tokens=settings.chunk_tokens,
            groups_under_way=2 * settings.prompts,
        ),
        Mode(
            name="plain, twice the batch",
            prompts=2 * settings.prompts,
            chunk_tokens=settings.max_tokens,
            groups_under_way=2 * settings.prompts,
        ),
    ]
    with parts.interpreter, tempfile.TemporaryDirectory() as folder:
        if settings.adapter is not None:
            load_adapter_weights(parts.model, settings.adapter)
        adapter = Path(folder) / "adapter"
        save_adapter(parts.model, adapter)
        bench = Bench(parts, settings)
        found = [bench.measure(mode, adapter) for mode in modes]
    if settings.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return
    table = Table("", "rollout s/group", "step s/group", "tokens/slot pass", "extra forward", "age", box=SIMPLE_HEAD)
    for row in found:
        table.add_row(
            row.mode,
            f"{row.rollout_s_per_group:.2f}",
            f"{row.step_s_per_group:.2f}",
            f"{row.tokens_per_slot_pass:.2f}",
            f"{row.extra_forward_share:.2f}",
            f"{row.mean_age:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"completions: mean {found[0].mean_tokens:.0f}, 95 % up to {found[0].p95_tokens} policy tokens")


def _fresh_tokens(carried: Sequence[Group], version: int) -> int:
    """Return the policy tokens of carried rollouts that this policy version wrote."""
    return sum(
        len(segment.token_ids)
        for group in carried
        for rollout in group.rollouts
        for segment in rollout.segments
        if segment.author is Author.POLICY and segment.policy_version == version
    )


if __name__ == "__main__":
    main()
