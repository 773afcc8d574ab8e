"""What a run needs in memory, tokens and arithmetic, from the sizes of its model and its samples.

Knows numbers only: no torch, no device, no file. Every constant that was measured says on what.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edge_rl.catalog import Shape
from edge_rl.config import Config
from edge_rl.types import Sample, Split

PROMPT_CHARS_PER_TOKEN = 3.0
TRACE_CHARS_PER_TOKEN = 2.2
"""Of the default task with SmolLM2's tokenizer, which splits digits one by one. No tokenizer is loaded for a plan."""

TEMPLATE_TOKENS = 12
"""What a chat template puts around system message and question."""

LIVE_SHARE = 0.8
"""Share of rollouts that enter an update, since groups without a signal are left out. Default task: 0.7 to 1."""

RIGHT_SHARE = 0.5
"""Completions of a warm-started model that rejection sampling finds right."""

EFFICIENCY = {"rollout": 0.35, "evaluation": 0.65, "update": 0.55, "llama_cpp": 0.8}
"""Shares of the plain matrix-product rate, measured on a CPU only."""

EFFICIENCY_REASONS = {
    "rollout": "the batch of a step thins out, and attention, sampling and tool calls are no matrix products: "
    "140 tokens/s of SmolLM2-135M in float32 on 2 cores at 110 to 130 GFLOP/s",
    "evaluation": "the same, but every slot stays filled: 230 to 280 tokens/s there",
    "update": "norms, activations, LoRA's thin products and padding: 125 to 150 tokens/s there",
    "llama_cpp": "its packed matrices lose little: 390 tokens/s there",
}
"""Why they are not 1."""

PASS_SECONDS_PER_LAYER = 6e-4
"""On a GPU, starting the kernels of one layer from Python; bounds decoding from below. Estimated, not measured."""

WARM_START_PASS_TOKENS = 2048
"""Most tokens of one forward pass of the warm start (offline/sft.py)."""

CACHE_STEP = 64
"""The key-value cache grows in steps of so many positions (rollout/engines/slot_cache.py)."""

HEAD_CHUNK = 256
"""Tokens whose logits exist at once in an update (learning/logprobs.py)."""

PROGRAM_BYTES = 700_000_000
"""torch, transformers and the rest of the process; on a GPU about the same for its context and libraries."""

NF4_BYTES = 0.516
"""Per weight: 4 bits, and the scales of double quantisation."""

BIASED_QKV = ("qwen2",)
"""Families whose query, key and value layers have a bias; layers with a bias are not packed (weights/packed.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How the frozen weights are held."""

    value_bytes: int
    """Of the dtype that is computed in: 2 or 4."""
    is_packed: bool = False
    """Whether linear layers also have copies in the blocked layout of oneDNN (float32 on a CPU)."""
    is_four_bit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """The samples in numbers; tokens are estimated from characters."""

    num_train: int
    num_validation: int
    num_test: int
    num_traces: int
    """Training samples that carry a trace."""
    prompt_tokens: int
    """Mean of a prompt."""
    longest_prompt: int
    trace_tokens: int
    """Mean of a trace without its prompt; 0 without traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The rows of one forward and backward pass: each a prompt and the completions that share it."""

    rows: int
    prompt: int
    """Tokens."""
    completions: int = 0
    """Of a row."""
    completion: int = 0
    """Tokens of each."""

    @property
    def tokens(self) -> int:
        """All tokens of the pass."""
        return self.rows * (self.prompt + self.completions * self.completion)

    @property
    def attended(self) -> int:
        """Token vectors that attention keeps (learning/attention.py).

        Queries, keys, values and the result of all tokens; the prompt's result; then of each completion queries and result
        once more, and the keys and values of its prompt and its own.
        """
        own = self.completions * (2 * self.completion + 2 * (self.prompt + self.completion))
        return 4 * self.tokens + self.rows * (self.prompt + own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The tokens of one phase of a run."""

    read: int = 0
    """Prompt tokens that the engine reads."""
    written: int = 0
    """Tokens that the engine writes, and tool results that it reads."""
    passes: int = 0
    """Forward passes that follow each other while writing."""
    learnt_rows: int = 0
    """Tokens that pass forward and backward."""
    learnt: int = 0
    """Of them, those whose logits are computed."""


# -- the samples -------------------------------------------------------------------------------------------------------


def count_tokens(text: str, chars_per_token: float) -> int:
    """Return about how many tokens a text has."""
    return math.ceil(len(text) / chars_per_token)


def task_facts(samples: Sequence[Sample], system: str) -> TaskFacts:
    """Return the samples in numbers."""
    prompts = [count_tokens(system + sample.question, PROMPT_CHARS_PER_TOKEN) + TEMPLATE_TOKENS for sample in samples]
    train = [sample for sample in samples if sample.split is Split.TRAIN]
    traces = [
        count_tokens("".join(part.text for part in (*sample.trace, *sample.hints)), TRACE_CHARS_PER_TOKEN)
        for sample in train
        if sample.trace
    ]
    return TaskFacts(
        num_train=len(train),
        num_validation=sum(sample.split is Split.VALIDATION for sample in samples),
        num_test=sum(sample.split is Split.TEST for sample in samples),
        num_traces=len(traces),
        prompt_tokens=math.ceil(sum(prompts) / len(prompts)),
        longest_prompt=max(prompts),
        trace_tokens=math.ceil(sum(traces) / len(traces)) if traces else 0,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def block_parameters(shape: Shape) -> int:
    """Return the parameters of the matrices in all blocks: without embedding and output head."""
    return shape.matrix_parameters - shape.vocab * shape.hidden * (1 if shape.tied else 2)


def packable_parameters(shape: Shape, family: str) -> int:
    """Return the parameters of the linear layers without a bias in all blocks."""
    biased = shape.hidden * shape.head_dim * (shape.heads + 2 * shape.kv_heads) if family in BIASED_QKV else 0
    return block_parameters(shape) - shape.layers * biased


def base_bytes(shape: Shape, parameters: int, precision: Precision) -> int:
    """Return the bytes of the frozen base; in 4 bit, embedding and output head stay in the dtype."""
    if not precision.is_four_bit:
        return parameters * precision.value_bytes
    blocks = block_parameters(shape)
    return round(blocks * NF4_BYTES) + (parameters - blocks) * precision.value_bytes


def adapter_bytes(shape: Shape, rank: int) -> int:
    """Return the bytes of adapter, gradient and the two moments of AdamW, all float32: 16 a parameter."""
    return 16 * shape.lora_parameters(rank)


def engine_bytes(shape: Shape, parameters: int, family: str, precision: Precision) -> int:
    """Return the bytes of the copies that make rollouts quick: the scratch model, and packed matrices where there are any.

    Packed: the trained model keeps two copies beside each plain matrix (forward and backward); the scratch model has one
    in place of it, and one of the head, whose plain matrix is the embedding.
    """
    scratch = parameters * precision.value_bytes
    if not precision.is_packed:
        return scratch
    head = shape.vocab * shape.hidden if shape.tied else 0
    return scratch + (2 * packable_parameters(shape, family) + head) * precision.value_bytes


def cache_tokens(facts: TaskFacts, max_tokens: int) -> int:
    """Return the positions of one slot of the key-value cache: longest prompt and completion, rounded up."""
    return -(-(facts.longest_prompt + max_tokens) // CACHE_STEP) * CACHE_STEP


def activation_bytes(shape: Shape, layout: Pass, rank: int, precision: Precision) -> int:
    """Return the bytes that autograd keeps for the backward pass, as torch saves them (a test holds the formula to that).

    Per layer and token: the inputs of both norms and what they give (4 x hidden), and in the MLP gate, its activation, up
    and their product (4 x intermediate). An adapter keeps its inner values in float32; in 16 bit it also keeps a float32
    copy of its input, and a norm one of its own. Attention keeps `Pass.attended` times heads x size.
    """
    hidden, attention, inner = shape.hidden, shape.heads * shape.head_dim, shape.intermediate
    if precision.value_bytes == 4:
        per_token = 4 * (4 * hidden + 4 * inner)
    else:
        per_token = 4 * (7 * hidden + attention + inner) + 2 * 3 * inner
    per_token += 4 * 7 * rank
    return shape.layers * (layout.tokens * per_token + layout.attended * attention * precision.value_bytes)


def logits_bytes(shape: Shape, rows: int) -> int:
    """Return the bytes of the logits of `rows` tokens with their exponentials and one copy, in float32."""
    return 3 * 4 * rows * shape.vocab


def update_pass(config: Config, facts: TaskFacts) -> Pass:
    """Return what passes forward and backward at once in an update: a microbatch of rows that share their prompts."""
    length = completion_tokens(config, facts)
    limit = max(config.learning.microbatch_tokens, facts.prompt_tokens + length)
    completions = min(config.rollout.group_size, (limit - facts.prompt_tokens) // length)
    rows = max(1, limit // (facts.prompt_tokens + completions * length))
    return Pass(rows=rows, prompt=facts.prompt_tokens, completions=completions, completion=length)


def warm_start_pass(config: Config, facts: TaskFacts) -> Pass:
    """Return what passes forward and backward at once in the warm start: whole traces, each a row."""
    if config.warm_start.kind == "none" or not facts.num_traces:
        return Pass(rows=0, prompt=0)
    trace = facts.prompt_tokens + facts.trace_tokens
    return Pass(rows=min(config.warm_start.batch_size, max(1, WARM_START_PASS_TOKENS // trace)), prompt=trace)


def slots_used(config: Config, facts: TaskFacts) -> int:
    """Return the sequences that are decoded at once where most are: in training or in a measurement."""
    rollouts = (
        collected_rollouts(config),
        facts.num_validation * config.evaluation.validation_samples,
        rollouts_of_test(config, facts),
    )
    return min(config.rollout.slots, max(rollouts))


def memory_parts(
    config: Config, shape: Shape, parameters: int, family: str, precision: Precision, facts: TaskFacts
) -> dict[str, int]:
    """Return the bytes that a run holds at its peak, by part."""
    slots = slots_used(config, facts)
    positions = cache_tokens(facts, config.rollout.max_tokens)
    warm_start = warm_start_pass(config, facts)
    passes = (update_pass(config, facts), warm_start)
    return {
        "base": base_bytes(shape, parameters, precision),
        "adapter and optimizer": adapter_bytes(shape, config.model.rank),
        "engine copies": engine_bytes(shape, parameters, family, precision),
        "key-value cache": slots * positions * shape.kv_bytes_per_token(precision.value_bytes),
        "activations": max(activation_bytes(shape, layout, config.model.rank, precision) for layout in passes),
        "logits": logits_bytes(shape, max(slots, HEAD_CHUNK, warm_start.rows * facts.trace_tokens)),
        "program": PROGRAM_BYTES,
    }


# -- tokens and arithmetic ---------------------------------------------------------------------------------------------


def collected_rollouts(config: Config) -> int:
    """Return the rollouts of one step; with chunks, twice as many are under way."""
    settings = config.rollout
    under_way = 2 if settings.chunk_tokens < settings.max_tokens else 1
    return settings.prompts_per_step * settings.group_size * under_way


def rollouts_of_test(config: Config, facts: TaskFacts) -> int:
    """Return the completions of the test questions that one checkpoint is measured by."""
    settings = config.evaluation
    questions = min(facts.num_test, settings.max_questions or facts.num_test)
    wide = min(settings.questions_at_8, questions) if settings.samples_per_question < 8 else 0
    return 8 * wide + settings.samples_per_question * (questions - wide)


def num_validations(config: Config) -> int:
    """Return how often validation happens: before the first step, every so many, and after the last."""
    steps, every = config.learning.num_steps, config.evaluation.every_steps
    return 1 + math.ceil(steps / every)


def completion_tokens(config: Config, facts: TaskFacts) -> int:
    """Return the expected tokens of a completion: as long as the traces, or half of what is allowed."""
    expected = facts.trace_tokens or math.ceil(config.rollout.max_tokens / 2)
    return min(expected, config.rollout.max_tokens)


def step_tokens(config: Config, facts: TaskFacts) -> dict[str, int]:
    """Return the completion tokens of one step: at most (every round of resampling needed) and expected (one round)."""
    rollouts = config.rollout.prompts_per_step * config.rollout.group_size
    return {
        "at_most": rollouts * config.rollout.max_tokens * config.rollout.max_resample_rounds,
        "expected": rollouts * completion_tokens(config, facts),
    }


def phase_work(config: Config, facts: TaskFacts) -> dict[str, Work]:
    """Return the expected tokens of each phase."""
    settings, steps = config.rollout, config.learning.num_steps
    length = completion_tokens(config, facts)
    rollouts = settings.prompts_per_step * settings.group_size
    live = rollouts * LIVE_SHARE * steps * config.learning.epochs
    shared_prompt = facts.prompt_tokens / update_pass(config, facts).completions
    validation = num_validations(config) * facts.num_validation
    samples = config.evaluation.validation_samples
    questions = min(facts.num_test, config.evaluation.max_questions or facts.num_test)
    test = rollouts_of_test(config, facts)
    warm = config.warm_start.kind == "sft"
    traces = facts.num_traces * config.warm_start.epochs if warm else 0
    rejection = config.rejection.kind == "rft"
    own = facts.num_train * config.rejection.samples_per_question if rejection else 0
    kept = min(own * RIGHT_SHARE, facts.num_train * config.rejection.keep_per_question)
    imitated = round((kept + facts.num_traces) * config.rejection.epochs) if rejection else 0
    preference = config.preference
    asked = preference.rounds * preference.prompts_per_round if preference.kind == "verifier" else 0
    compared = 2 * asked * min(preference.pairs_per_question, preference.samples_per_question // 2) * preference.epochs
    # with no reinforcement the last supervised stage is the tuned model
    tuned = max(1, warm + rejection + bool(asked) + (steps > 0))
    return {
        "warm start": Work(
            learnt_rows=traces * (facts.prompt_tokens + facts.trace_tokens), learnt=traces * facts.trace_tokens
        ),
        "rejection": Work(
            read=(facts.num_train if rejection else 0) * facts.prompt_tokens,
            written=own * length,
            passes=_passes(config, own) if rejection else 0,
            learnt_rows=imitated * (facts.prompt_tokens + length),
            learnt=imitated * length,
        ),
        "preference": Work(
            # the frozen reference reads what is learnt
            read=(asked + compared) * facts.prompt_tokens + compared * length,
            written=asked * preference.samples_per_question * length,
            passes=preference.rounds * _passes(config, preference.prompts_per_round * preference.samples_per_question)
            if asked
            else 0,
            learnt_rows=compared * (facts.prompt_tokens + length),
            learnt=compared * length,
        ),
        "GRPO rollouts": Work(
            read=steps * settings.prompts_per_step * facts.prompt_tokens,
            written=steps * rollouts * length,
            passes=steps * _passes(config, rollouts),
        ),
        "GRPO updates": Work(learnt_rows=round(live * (length + shared_prompt)), learnt=round(live * length)),
        "validation": Work(
            read=validation * facts.prompt_tokens,
            written=validation * samples * length,
            passes=num_validations(config) * _passes(config, facts.num_validation * samples),
        ),
        # the base does not know when to stop
        "test": Work(
            read=(1 + tuned) * questions * facts.prompt_tokens,
            written=test * (settings.max_tokens + tuned * length),
            passes=(1 + tuned) * _passes(config, test),
        ),
        "GGUF test": _check_work(config, facts, length),
    }


def work_flops(work: Work, shape: Shape, rank: int) -> tuple[float, float]:
    """Return the floating-point operations of (reading and writing, learning) these tokens; attention itself is left out.

    A matrix costs 2 operations a parameter and token forward; backward, 2 more for the gradient of its input (frozen
    weights need none of their own). Adapters cost 6: forward, input and weights. The head's gradient is made in its
    forward pass: 4.
    """
    blocks, head = block_parameters(shape), shape.vocab * shape.hidden
    generate = 2 * blocks * (work.read + work.written) + 2 * head * work.written
    learn = (4 * blocks + 6 * shape.lora_parameters(rank)) * work.learnt_rows + 4 * head * work.learnt
    return float(generate), float(learn)


def _passes(config: Config, rollouts: int) -> int:
    """Some rollout usually writes as much as it may."""
    return math.ceil(rollouts / config.rollout.slots) * config.rollout.max_tokens


def _check_work(config: Config, facts: TaskFacts, length: int) -> Work:
    if not config.export.formats:
        return Work()
    questions = min(facts.num_test, config.export.check_questions)
    return Work(read=questions * facts.prompt_tokens, written=questions * config.export.check_samples * length)
