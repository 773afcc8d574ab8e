"""The stages of a training run in order: warm start, reinforcement, measurement. Reads like the algorithm."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from edge_rl.data.sampler import Sampler
from edge_rl.data.shots import ShotSchedule
from edge_rl.evaluation.evaluator import load_report, save_report
from edge_rl.learning.ppo import make_learner
from edge_rl.monitor.groups import group_metrics
from edge_rl.monitor.guards import Finding, Validation, Watch
from edge_rl.monitor.metrics import Control, MetricsWriter, read_metrics
from edge_rl.monitor.progress import Progress
from edge_rl.offline.sft import SupervisedMetrics
from edge_rl.pipeline.assembly import Parts
from edge_rl.pipeline.memory import release_free_memory
from edge_rl.pipeline.supervised import (
    fine_tune_on_own_answers,
    fine_tune_on_traces,
    prefer_pairs,
    sample_own_answers,
    sample_pairs,
)
from edge_rl.pipeline.trust import check_engine
from edge_rl.pipeline.validating import validation_of
from edge_rl.rollout.disk_queue import RolloutQueue
from edge_rl.types import EvalReport, Group, Prompt, ScoredGroup, StepReport
from edge_rl.weights.adapters import base_facts, check_frozen, load_adapter_weights, save_adapter
from edge_rl.weights.checkpoints import latest_checkpoint, load_checkpoint, remove_old_checkpoints, save_checkpoint


class Stopped(Exception):  # noqa: N818  (no error: somebody asked for it)
    """The run was asked to stop; it is saved."""


@dataclass(slots=True)
class Clock:
    """Seconds that a run took in all its sessions, by phase."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _since: float = field(default_factory=time.monotonic)

    def lap(self, phase: str) -> None:
        """Book the time since the last lap."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


class Training:
    """One run folder and what happens in it."""

    def __init__(self, parts: Parts, run_dir: Path, progress: Progress, *, rollouts_from: Path | None = None) -> None:
        """`rollouts_from`: folder of groups to train on, instead of collecting them."""
        self._parts = parts
        self._config = parts.config
        self._run_dir = run_dir
        self._progress = progress
        self._sampler = Sampler(
            [sample.id for sample in parts.samples.train], parts.config.run.seed, order=parts.config.rollout.order
        )
        self._shots = ShotSchedule(
            parts.config.data.shots, parts.config.learning.num_steps, parts.config.data.shots_success
        )
        self._learner = make_learner(
            parts.model,
            parts.config.learning,
            temperature=parts.config.rollout.temperature,
            pad_token_id=int(parts.tokenizer.pad_token_id),
        )
        self._collector = parts.collector_for(parts.engine)
        self._carried: list[Group] = []
        self._queue = None if rollouts_from is None else RolloutQueue(rollouts_from)
        self._queue_position = 0
        self._validations: list[Validation] = []
        self._watch = Watch(parts.config.guards)
        self._ended_by = ""
        self._step = 0
        self._saved_at = time.monotonic()
        self.clock = Clock()
        self._resume()
        self._writer = MetricsWriter(run_dir, first_step=self._step)
        self._reports = read_metrics(run_dir)
        self._base = base_facts(parts.model)
        self._is_checked = False
        self._supervised: dict[str, Path] = {}
        self.stop_requested = False

    # -- the phases --------------------------------------------------------------------------------------------------

    def warm_start(self) -> None:
        """Fine-tune the adapter on the hinted traces, unless that is done or not wanted."""
        if self._config.warm_start.kind != "none":
            phase = f"warm start: SFT on {len(self._parts.samples.hinted)} hinted traces"
            self._supervise("warm_start", phase, lambda folder: fine_tune_on_traces(self._parts, folder))

    def imitate(self) -> None:
        """Fine-tune a fresh adapter on the model's own right answers (RFT), unless that is done or not wanted."""
        settings = self._config.rejection
        if settings.kind == "none":
            return

        def train(folder: Path) -> SupervisedMetrics:
            before = self._supervised.get("warm_start")
            selection = sample_own_answers(self._parts, before)
            counts = ", ".join(f"{count} {fate}" for fate, count in selection.fates.most_common())
            self._writer.write_event("rejection", counts, **selection.fates)
            self._progress.note(f"of {selection.num_questions} questions: {counts}")
            return fine_tune_on_own_answers(self._parts, selection, folder)

        count = settings.samples_per_question * len(self._parts.samples.train)
        self._supervise("rejection", f"rejection sampling: SFT on the best of {count} completions", train)

    def prefer(self) -> None:
        """Optimise preferences between the model's own right and wrong completions, round by round (verifier DPO)."""
        settings = self._config.preference
        if settings.kind == "none":
            return
        # An order of its own, from the start at every resume: rounds that are done ask for their questions again.
        order = Sampler([sample.id for sample in self._parts.samples.train], self._config.run.seed)
        for number in range(settings.rounds):
            sample_ids = order.next(settings.prompts_per_round)

            def train(folder: Path, number: int = number, sample_ids: Sequence[str] = sample_ids) -> SupervisedMetrics:
                before = folder / "before"
                save_adapter(self._parts.model, before, facts=self._base)
                pairs = sample_pairs(self._parts, sample_ids, before, number=number)
                self._writer.write_event("preference", f"{len(pairs)} pairs", round=number)
                self._progress.note(f"{len(pairs)} pairs of {len(sample_ids)} questions")
                return prefer_pairs(self._parts, pairs, folder, number=number)

            phase = f"preference optimisation: round {number + 1} of {settings.rounds}"
            self._supervise("preference", phase, train, folder=self._run_dir / "preference" / f"round-{number + 1}")

    def _supervise(
        self, name: str, phase: str, train: Callable[[Path], SupervisedMetrics], *, folder: Path | None = None
    ) -> None:
        """Bring the adapter to the end of a supervised stage (or a round of it): train it, or load what lies there."""
        folder = folder or self._run_dir / name
        target = folder / "adapter"
        if not self._step and target.is_dir():
            load_adapter_weights(self._parts.model, target)
        elif not self._step:
            self.begin(phase)
            metrics = train(folder)
            save_adapter(self._parts.model, target, facts=self._base)
            losses = metrics["loss_curve"]
            if losses:
                self._writer.write_event(name, f"{metrics['num_steps']} steps", loss=losses[-1])
                self._progress.note(f"{metrics['num_steps']} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}")
            self.clock.lap(name)
        self._supervised[name] = target

    def reinforce(self) -> None:
        """Take the remaining GRPO steps; stop early and saved where asked to, or for good where a guard says so.

        Raises: Stopped.
        """
        config = self._config
        if self._is_going_on():
            self.begin(
                f"GRPO: {config.learning.num_steps} steps, {config.rollout.prompts_per_step} prompts x "
                f"{config.rollout.group_size} rollouts"
            )
        # A run that was stopped right after a step has neither behind it.
        if self._is_validation_due():
            self._validate()
        self._heed_guards()
        while self._is_going_on():
            self._heed_control()
            started = time.monotonic()
            groups = self._collect() if self._queue is None else self._take(self._queue)
            self._parts.scratch.unload()  # it is written anew for the next policy, and the update needs the room
            release_free_memory()
            collected = time.monotonic()
            self._check(groups)
            self._carried = self._learner.with_old_logprobs(self._carried, policy_version=self._step)
            update = self._learner.update(groups, policy_version=self._step)
            release_free_memory()
            for group in groups:
                if group.num_judged:
                    self._sampler.record(group.group.sample_id, group.num_correct / group.num_judged)
            metrics = {**group_metrics(groups), **update, "seconds/rollout": collected - started}
            if math.isfinite(metrics["reward/solve_rate"]):
                self._shots.record(metrics["reward/solve_rate"])
            metrics["seconds/step"] = time.monotonic() - started
            report = StepReport(step=self._step, metrics=metrics)
            self._writer.write_samples(self._step, groups)
            self._writer.write_step(report)
            self._reports.append(report)
            self._progress.step(report, config.learning.num_steps)
            self._step += 1
            self.clock.lap("reinforce")
            self._heed_clock()
            if self._is_validation_due():
                self._validate()
            self._heed_guards()
            self._save_if_due()
        if self._is_validation_due():
            # a guard ended the stage between two validations
            self._validate()
            self.save()

    def measure(self) -> dict[str, EvalReport]:
        """Return the test reports of base, warm start and tuned model; what is on disk is not measured again."""
        adapters: dict[str, Path | None] = {"base": None}
        adapters |= {name.replace("_", " "): folder for name, folder in self._supervised.items()}
        if not self._config.learning.num_steps and self._supervised:
            adapters.popitem()  # the last supervised stage is the tuned model
        adapters["tuned"] = self.best_adapter
        reports: dict[str, EvalReport] = {}
        check_frozen(self._parts.model, self._base)
        for name, adapter in adapters.items():
            path = self._run_dir / "eval" / f"{name.replace(' ', '_')}.json"
            if not path.exists():
                self.begin(f"test: {name}, {len(self._parts.samples.test)} questions")
                settings = self._config.evaluation
                report = self._parts.measure(
                    name,
                    self._parts.samples.test,
                    settings.samples_per_question,
                    num_at_8=settings.questions_at_8,
                    adapter=adapter,
                )
                save_report(report, path)
                self._progress.evaluation(report)
                self.clock.lap("measure")
                self._write_clock()
            reports[name] = load_report(path)
        return reports

    @property
    def best_adapter(self) -> Path:
        """Folder of the adapter with the best validation."""
        return self._run_dir / "best" / "adapter"

    @property
    def validation(self) -> list[tuple[int, float]]:
        """(steps taken, validation pass@1) in order; 0 steps = warm start."""
        return [(item.step, item.pass_at_1) for item in self._validations]

    @property
    def ended_by(self) -> str:
        """What ended the reinforcement stage before its last step: a guard with its evidence, or the time; else empty."""
        return self._ended_by

    @property
    def writer(self) -> MetricsWriter:
        """The run's files."""
        return self._writer

    # -- one step ----------------------------------------------------------------------------------------------------

    def _load_policy(self) -> None:
        """Give the engine the adapter as it is now."""
        folder = self._run_dir / "policy" / "adapter"
        save_adapter(self._parts.model, folder, facts=self._base)
        self._parts.engine.load_adapter(folder, policy_version=self._step)

    def _check(self, groups: Sequence[ScoredGroup]) -> None:
        """Check engine and base: in the first step of every process, and then every so many steps.

        Raises: EngineError, ModelError.
        """
        if self._is_checked and self._step % self._config.guards.check_every_steps:
            return
        check_frozen(self._parts.model, self._base)
        text = check_engine(
            self._learner,
            groups,
            policy_version=self._step,
            dtype=cast(torch.dtype, self._parts.model.get_base_model().dtype),
            is_quantised=self._config.model.quantisation != "none",
        )
        self._writer.write_event("check", text, step=float(self._step))
        self._is_checked = True

    def _collect(self) -> list[ScoredGroup]:
        """Return the step's groups; with dynamic sampling, groups without a signal are replaced for a few rounds.

        Source: dynamic sampling, DAPO, arXiv:2503.14476, section 3.2, by variance of correctness.
        """
        self._load_policy()
        settings = self._config.rollout
        kept: list[ScoredGroup] = []
        silent: list[ScoredGroup] = []
        drawn = 0
        # With chunks, a round may draw twice the groups that it hands out.
        most_drawn = settings.prompts_per_step * (2 if settings.chunk_tokens < settings.max_tokens else 1)
        for _ in range(settings.max_resample_rounds):
            groups, self._carried = self._collector.collect(
                self._next_prompts,
                self._carried,
                step=self._step,
                num_groups=settings.prompts_per_step - len(kept),
                first_index=drawn,
            )
            drawn += most_drawn
            for group in self._parts.scorer.score(groups):
                (kept if group.is_mixed else silent).append(group)
            if len(kept) >= settings.prompts_per_step:
                break
        return [*kept, *silent]

    def _take(self, queue: RolloutQueue) -> list[ScoredGroup]:
        """Return the step's groups from the disk queue; an empty queue ends this process, saved.

        Raises: Stopped.
        """
        settings = self._config.rollout
        groups = queue.take(settings.prompts_per_step, oldest_version=self._step - settings.max_queue_age)
        if not groups:
            self._progress.note(
                f"the queue of rollouts is empty ({queue.num_expired} were too old); fill it with --rollouts-to, "
                "then run the same command again"
            )
            self.save()
            raise Stopped
        return self._parts.scorer.score(groups)

    def fill(self, folder: Path, num_groups: int) -> None:
        """Collect groups with the policy as it is now and put them into a queue on disk, one step's prompts at a time."""
        queue = RolloutQueue(folder, position=self._queue_position)  # numbers go on where this run's reader stands
        self._load_policy()
        self.begin(f"rollouts to disk: {num_groups} groups of policy version {self._step}")
        written = 0
        while written < num_groups:
            self._heed_control()
            groups, self._carried = self._collector.collect(
                self._next_prompts,
                self._carried,
                step=self._step,
                num_groups=min(self._config.rollout.prompts_per_step, num_groups - written),
                first_index=queue.end,
            )
            queue.put(self._learner.with_old_logprobs(groups, policy_version=self._step))
            written += len(groups)
            self._progress.note(f"{written} of {num_groups} groups")
        self.clock.lap("reinforce")
        self.save()

    def _next_prompts(self, count: int) -> list[Prompt]:
        by_id = self._parts.samples.by_id
        samples = [by_id[sample_id] for sample_id in self._sampler.next(count)]
        return self._parts.prompts(samples, shots=self._shots.shots)

    def _is_going_on(self) -> bool:
        return self._step < self._config.learning.num_steps and not self._ended_by

    def _heed_clock(self) -> None:
        """End the stage where its minutes are over."""
        limit = self._config.learning.max_minutes
        minutes = (self.clock.seconds.get("reinforce", 0.0) + self.clock.seconds.get("validate", 0.0)) / 60
        if limit is not None and minutes >= limit and not self._ended_by:
            self._ended_by = f"time: {minutes:.1f} of {limit:g} minutes"
            self._progress.note(f"the {limit:g} minutes of the reinforcement stage are over")

    def _heed_guards(self) -> None:
        for finding in self._watch.look(self._reports, self._validations):
            self._act_on(finding)

    def _act_on(self, finding: Finding) -> None:
        """Do what a guard asks for, and say so."""
        factor = self._config.guards.lr_factor
        done = "go on"
        if finding.action == "lower_lr":
            done = f"learning rate lowered to {self._learner.lower_learning_rate(factor):.1e}"
        elif finding.action == "roll_back":
            load_adapter_weights(self._parts.model, self.best_adapter)
            self._learner.forget_moments()
            rate = self._learner.lower_learning_rate(factor)
            done = f"back to the best adapter, learning rate lowered to {rate:.1e}"
        elif finding.action == "stop":
            self._ended_by = f"{finding.guard}: {finding.evidence}"
            done = "the reinforcement stage ends here; the best adapter is measured"
        self._writer.write_event("guard", f"{finding.evidence}; {done}", guard=finding.guard, action=finding.action)
        self._progress.note(f"guard {finding.guard}: {finding.evidence}; {done}")

    def _is_validation_due(self) -> bool:
        """Whether this step is to be measured and is not: a run that was stopped before its measurement catches up on it."""
        is_wanted = self._step % self._config.evaluation.every_steps == 0 or not self._is_going_on()
        return is_wanted and self._step not in [item.step for item in self._validations]

    def _validate(self) -> None:
        """Measure the adapter on the validation split; keep it if it is the best so far."""
        samples = self._parts.samples.validation
        self.begin(f"validation after {self._step} steps")
        self._load_policy()
        policy = self._run_dir / "policy" / "adapter"
        report_samples = self._config.evaluation.validation_samples
        report = self._parts.measure(f"step {self._step}", samples, report_samples, adapter=policy)
        save_report(report, self._run_dir / "eval" / f"validation-{self._step}.json")
        if report.pass_at_1.value >= max((item.pass_at_1 for item in self._validations), default=-math.inf):
            save_adapter(self._parts.model, self.best_adapter, facts=self._base)
        self._validations.append(validation_of(self._step, report))
        self._progress.evaluation(report)
        if self._step and self._step % self._config.evaluation.baseline_every_steps == 0:
            base = self._parts.measure(f"base beside step {self._step}", samples, report_samples)
            save_report(base, self._run_dir / "eval" / f"validation-{self._step}-base.json")
            self._progress.evaluation(base)
        self.clock.lap("validate")

    # -- save, resume, stop ------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step."""
        save_checkpoint(
            self._run_dir,
            self._parts.model,
            step=self._step,
            learner=self._learner.state(),
            state=self._state(),
            carried=self._carried,
            facts=self._base,
        )
        remove_old_checkpoints(self._run_dir, keep=self._config.run.keep_checkpoints)
        if self._queue is not None:
            self._queue.forget()
        self._saved_at = time.monotonic()

    def _state(self) -> dict[str, Any]:
        return {
            "queue_position": self._queue_position if self._queue is None else self._queue.position,
            "sampler": self._sampler.state(),
            "shots": self._shots.state(),
            "validations": [asdict(item) for item in self._validations],
            "guards": self._watch.spoke,
            "ended_by": self._ended_by,
            "seconds": self.clock.seconds,
        }

    def _resume(self) -> None:
        folder = latest_checkpoint(self._run_dir)
        if folder is None:
            return
        checkpoint = load_checkpoint(folder, self._parts.model)
        self._learner.load_state(checkpoint.learner)
        self._queue_position = int(checkpoint.state["queue_position"])
        if self._queue is not None:
            self._queue.position = self._queue_position
        self._sampler.load_state(checkpoint.state["sampler"])
        self._shots.load_state(checkpoint.state["shots"])
        self._validations = [Validation(**item) for item in checkpoint.state["validations"]]
        self._watch.spoke = dict(checkpoint.state["guards"])
        self._ended_by = str(checkpoint.state["ended_by"])
        self.clock.seconds = dict(checkpoint.state["seconds"])
        clock_file = self._run_dir / "clock.json"
        if clock_file.exists():
            self.clock.seconds |= json.loads(clock_file.read_text(encoding="utf-8"))
        self._carried = checkpoint.carried
        self._step = checkpoint.step
        self._progress.note(f"resumed at step {self._step} from {folder}")

    def _write_clock(self) -> None:
        """Keep the seconds of phases after the last checkpoint."""
        partial = self._run_dir / "clock.json.partial"
        partial.write_text(json.dumps(self.clock.seconds), encoding="utf-8")
        partial.replace(self._run_dir / "clock.json")

    def _save_if_due(self) -> None:
        run = self._config.run
        is_last = not self._is_going_on()
        is_late = time.monotonic() - self._saved_at > run.checkpoint_every_minutes * 60
        if is_last or is_late or self._step % run.checkpoint_every_steps == 0:
            self.save()
        if self._step % run.keep_adapter_every_steps == 0:
            save_adapter(self._parts.model, self._run_dir / "adapters" / f"step-{self._step}", facts=self._base)

    def _heed_control(self) -> None:
        self._writer.write_status("reinforce", self._step)
        control = self._writer.read_control()
        while control is Control.PAUSE and not self.stop_requested:
            time.sleep(1.0)
            self._writer.write_status("paused", self._step)
            control = self._writer.read_control()
        if control is Control.STOP or self.stop_requested:
            self.save()
            raise Stopped
        if control is Control.SAVE:
            self.save()

    def begin(self, phase: str) -> None:
        """Announce a phase; save and go no further where a stop was asked for.

        Raises: Stopped.
        """
        if self.stop_requested:
            self.save()
            raise Stopped
        release_free_memory()
        self._progress.phase(phase)
        self._writer.write_status(phase, self._step)
        self._writer.write_event("phase", phase)
