"""The records that stages hand to each other, and the seams between them. Knows no model, no file and no library.

Token ids are the truth from the engine to the loss: text is decoded for verifiers and people, never re-encoded.
Loss masks derive from authors, so they cannot disagree with the segments.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from edge_rl.errors import DataError


class Author(StrEnum):
    """Who wrote a run of tokens or characters."""

    POLICY = "policy"
    TOOL = "tool"
    HINT = "hint"
    LIMIT = "limit"
    """Nobody: put in because a limit was reached, such as the end of a think block."""


class Split(StrEnum):
    """Which part of a data set a sample belongs to; TEST is read by evaluation only."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class HintKind(StrEnum):
    """What a hint does. The first two are CoRT's (arXiv:2506.09820)."""

    DELAYED_CODE = "delayed_code"
    """Turns the start of a long hand computation to code."""
    DISTRUST_RESULT = "distrust_result"
    """Settles a doubt about a result that the interpreter returned."""
    FREE = "free"


class StopReason(StrEnum):
    """Why a rollout ended."""

    STOP = "stop"
    """The policy wrote its end-of-turn token."""
    LENGTH = "length"
    """The completion reached max_tokens: truncated."""
    TOOL_LIMIT = "tool_limit"
    """The policy asked for one tool call more than allowed."""
    GARBLED = "garbled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSegment:
    """A run of characters of a trace that share one author."""

    author: Author
    text: str
    hint_kind: HintKind | None = None
    """Kind of a HINT segment; None for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Text that steers a trace, inserted at an exact place of it."""

    kind: HintKind
    text: str
    """Inserted verbatim, so it carries its own spaces and line ends."""
    position: int | None = None
    """Character offset in the hint-free trace; None for a hint that belongs to no trace (a ladder tier)."""
    tier: int | None = None
    """Step of the hint ladder, 1 = lightest; None for a hint inside a trace."""

    def __post_init__(self) -> None:
        if (self.position is None) == (self.tier is None):
            raise DataError(f"hint {self.text[:40]!r} needs exactly one of position and tier")
        if self.position is not None and self.position < 0:
            raise DataError(f"hint {self.text[:40]!r} has position {self.position}; offsets start at 0")
        if self.tier is not None and self.tier < 1:
            raise DataError(f"hint {self.text[:40]!r} has tier {self.tier}; tiers start at 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question with its gold answer."""

    id: str
    """Unique in its file."""
    question: str
    answer: str
    """The gold answer, never the model's text."""
    kind: str = "numeric"
    """Name of the verifier that judges it."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of that verifier, e.g. a tolerance or a schema."""
    tests: tuple[str, ...] = ()
    """For kind `code`: assertions, run in the sandbox."""
    tools: tuple[str, ...] = ()
    """Names of the tools the policy may call, e.g. ("python",)."""
    trace: tuple[TraceSegment, ...] = ()
    """A hint-free trace in order: what the policy wrote and what tools returned."""
    hints: tuple[Hint, ...] = ()
    split: Split = Split.TRAIN
    tags: tuple[str, ...] = ()
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        if not self.id or not self.question.strip():
            raise DataError(f"sample {self.id!r} needs an id and a question")
        length = sum(len(segment.text) for segment in self.trace)
        for hint in self.hints:
            if hint.position is not None and hint.position > length:
                raise DataError(
                    f"sample {self.id}: hint at offset {hint.position}, but its trace has {length} characters"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model sees before it writes; never in the loss."""

    sample_id: str
    token_ids: tuple[int, ...]
    """[P] chat template applied, generation prompt included."""
    hint_level: int = 0
    """Ladder tier shown in the prompt; 0 = none. Always 0 in evaluation."""
    shots: int = 0
    """Worked examples in the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of completion tokens that share one author and one policy version."""

    author: Author
    token_ids: tuple[int, ...]
    """[T] token ids in order."""
    behaviour_logprobs: tuple[float, ...] = ()
    """[T] natural log-probabilities under the policy that sampled them; empty unless POLICY."""
    policy_version: int = 0
    """Optimizer steps taken before this segment was sampled."""
    old_logprobs: tuple[float, ...] = ()
    """[T] the same by the trainer's own computation, for a segment that is carried to a later policy; empty until then."""

    def __post_init__(self) -> None:
        expected = len(self.token_ids) if self.author is Author.POLICY else 0
        if len(self.behaviour_logprobs) != expected:
            raise DataError(
                f"{self.author} segment of {len(self.token_ids)} tokens has "
                f"{len(self.behaviour_logprobs)} behaviour logprobs; expected {expected}"
            )
        if len(self.old_logprobs) not in (0, expected):
            raise DataError(
                f"{self.author} segment of {len(self.token_ids)} tokens has {len(self.old_logprobs)} old logprobs; "
                f"expected {expected} or none"
            )


class ExecutionStatus(StrEnum):
    """How a piece of code ended in the sandbox."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    DENIED = "denied"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What running a piece of code gave. Code that failed is a result, not an error."""

    status: ExecutionStatus
    stdout: str
    error: str = ""
    """One line such as "ZeroDivisionError: division by zero"; empty when the status is OK."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt at one prompt. Example: 2 policy tokens, 1 tool token -> loss_mask (True, True, False)."""

    prompt: Prompt
    group_id: str
    member: int
    """Place in its group, from 0."""
    segments: tuple[Segment, ...] = ()
    """In order; a chunk boundary also starts a new segment."""
    stop_reason: StopReason | None = None
    """None while unfinished."""
    executions: tuple[Execution, ...] = ()
    """Results of the tool calls, in order."""
    text: str = ""
    """The completion decoded once, when the rollout ends: for people."""
    policy_text: str = ""
    """What the policy wrote, a newline where a tool result stood: for verifiers."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """[T] all completion tokens, whoever wrote them."""
        return tuple(token for segment in self.segments for token in segment.token_ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """[T] True exactly on tokens the policy wrote."""
        return tuple(segment.author is Author.POLICY for segment in self.segments for _ in segment.token_ids)

    @property
    def behaviour_logprobs(self) -> tuple[float, ...]:
        """[T] engine log-probabilities; 0.0 on tokens that the policy did not write."""
        return tuple(
            value
            for segment in self.segments
            for value in (segment.behaviour_logprobs or (0.0,) * len(segment.token_ids))
        )

    @property
    def old_logprobs(self) -> tuple[float | None, ...]:
        """[T] what the trainer computed under the policy that sampled each token; None where it did not."""
        return tuple(
            value for segment in self.segments for value in (segment.old_logprobs or (None,) * len(segment.token_ids))
        )

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """[T] optimizer steps taken before each token was sampled."""
        return tuple(segment.policy_version for segment in self.segments for _ in segment.token_ids)

    @property
    def num_policy_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.author is Author.POLICY)

    @property
    def is_finished(self) -> bool:
        """Whether it has a stop reason."""
        return self.stop_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The K rollouts of one prompt; scored only when all have stopped."""

    id: str
    sample_id: str
    rollouts: tuple[Rollout, ...]
    born: int
    """Policy version when its first token was sampled."""

    @property
    def is_finished(self) -> bool:
        """Whether all its rollouts have stopped."""
        return all(rollout.is_finished for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says about one completion."""

    correct: bool | None
    """None: could not judge. It carries no reward and no gradient."""
    reason: str
    """One line for people."""
    route: str = ""
    """Which way of judging decided, e.g. "exact_number"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The number that one rollout is trained on."""

    total: float | None
    """None where the verdict is None."""
    breakdown: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts; they add up to the total."""
    signals: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was measured beside the reward and never enters it, such as the format or the gap to an audit judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A finished group with a verdict and a reward per rollout."""

    group: Group
    verdicts: tuple[Verdict, ...]
    rewards: tuple[Reward, ...]

    def __post_init__(self) -> None:
        if not len(self.group.rollouts) == len(self.verdicts) == len(self.rewards):
            raise DataError(f"group {self.group.id}: rollouts, verdicts and rewards differ in number")

    @property
    def num_correct(self) -> int:
        """Rollouts judged correct."""
        return sum(verdict.correct is True for verdict in self.verdicts)

    @property
    def num_judged(self) -> int:
        """Rollouts judged at all."""
        return sum(verdict.correct is not None for verdict in self.verdicts)

    @property
    def is_mixed(self) -> bool:
        """Whether some judged rollouts are right and some wrong: it carries a signal about correctness."""
        return 0 < self.num_correct < self.num_judged


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one training step did."""

    step: int
    metrics: Mapping[str, float]
    """Flat names such as "reward/mean", "loss/clip_high", "seconds/rollout"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """A fixed checkpoint measured on held-out samples, without hints."""

    name: str
    """"base", "warm start", "tuned", ..."""
    num_correct: Mapping[str, int]
    """Right completions per sample id."""
    num_samples: Mapping[str, int]
    """Judged completions per sample id."""
    pass_at_1: Estimate
    pass_at_8: Estimate | None
    """Over the questions with 8 judged completions; None without any."""
    code_share: float
    """Share of completions with at least one tool call, a mean over questions."""
    tokens: float
    """Policy tokens of a completion, a mean over questions."""
    unjudged: int
    truncated: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Continue one token sequence."""

    key: str
    """Names the rollout; results and follow-ups are matched by it."""
    token_ids: tuple[int, ...]
    """[T] prompt and everything written so far."""
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    """Stop after any of these (the token is kept): end of turn."""
    watch_token_ids: frozenset[int] = frozenset()
    """After any of these `stop_when` is asked; a cheap filter for stops that span tokens, such as a closing fence."""
    stop_when: Callable[[Sequence[int]], bool] | None = None
    """Whether to stop, given the new tokens of this request so far."""
    temperature: float = 1.0
    """Divisor of the logits; the returned logprobs are taken after it. 0 = greedy (logprobs of the undivided logits)."""
    seed: int = 0
    """With the position in the sequence it decides every draw, so a rollout does not depend on its neighbours."""


FollowUp = Callable[[GenerationRequest, Segment], GenerationRequest | None]
"""Takes a request and its finished segment; returns the next request of the same rollout, or None when it is done.

A follow-up extends the sequence: its token_ids begin with those of the request and the segment. An engine may thus keep
the key-value cache of the sequence.
"""


class Engine(Protocol):
    """Continues token sequences. Knows nothing of text, tools, rewards or training."""

    def generate(self, requests: Sequence[GenerationRequest], follow_up: FollowUp) -> None:
        """Run all requests and all their follow-ups; each POLICY segment is delivered through `follow_up` once."""
        ...

    def load_adapter(self, adapter_dir: Path | None, *, policy_version: int) -> None:
        """Sample from this adapter (None: the base) from now on and stamp segments with its version."""
        ...


def generate_all(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Segment]:
    """Return one POLICY segment per request, in order, with no follow-ups."""
    segments: dict[str, Segment] = {}

    def collect(request: GenerationRequest, segment: Segment) -> None:
        segments[request.key] = segment

    engine.generate(requests, collect)
    return [segments[request.key] for request in requests]


class Session(Protocol):
    """One isolated interpreter; its state persists between calls."""

    def run(self, code: str) -> Execution:
        """Run code; never raises for what the code does."""
        ...

    def close(self) -> None:
        """End it and everything it started."""
        ...


class Interpreter(Protocol):
    """Opens one session per rollout.

    Raises: SandboxError where no session can be had.
    """

    def open(self) -> Session:
        """Return a fresh session."""
        ...


class Verifier(Protocol):
    """Text and gold in, verdict out; no model, no eval, bounded time."""

    def __call__(self, completion: str, sample: Sample) -> Verdict:
        """Judge one completion."""
        ...


def derive_seed(run_seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends only on its arguments.

    Example: a rollout's seed comes from (run seed, "rollout", group id, member), so order and restarts do not change it.
    """
    digest = hashlib.blake2b(repr((run_seed, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
