import pytest

from edge_rl.catalog import Shape
from edge_rl.config import Config, build
from edge_rl.pipeline.estimates import (
    HEAD_CHUNK,
    Pass,
    Precision,
    TaskFacts,
    Work,
    activation_bytes,
    adapter_bytes,
    base_bytes,
    block_parameters,
    cache_tokens,
    completion_tokens,
    count_tokens,
    engine_bytes,
    logits_bytes,
    memory_parts,
    num_validations,
    packable_parameters,
    phase_work,
    rollouts_of_test,
    slots_used,
    step_tokens,
    task_facts,
    update_pass,
    warm_start_pass,
    work_flops,
)
from edge_rl.types import Author, Hint, HintKind, Sample, Split, TraceSegment

# attention 8 * 4 * 2 * (2 + 1) = 192, MLP 3 * 8 * 16 = 384 a layer; embedding 32 * 8 = 256
SHAPE = Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=32)
UNTIED = Shape(layers=2, hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, vocab=32, tied=False)
FACTS = TaskFacts(
    num_train=10, num_validation=3, num_test=7, num_traces=4, prompt_tokens=30, longest_prompt=50, trace_tokens=12
)
FULL = Precision(value_bytes=4, is_packed=True)
HALF = Precision(value_bytes=2)


def _config(**sections: dict[str, object]) -> Config:
    return build(sections)


SETTINGS = _config(
    rollout={"prompts_per_step": 2, "group_size": 4, "max_tokens": 20, "chunk_tokens": 20, "slots": 96},
    learning={"num_steps": 5, "microbatch_tokens": 100},
    warm_start={"epochs": 3, "batch_size": 2},
    evaluation={"samples_per_question": 1, "questions_at_8": 2, "every_steps": 2, "validation_samples": 2},
    export={"check_questions": 6, "check_samples": 1},
)


@pytest.mark.parametrize("shape", [SHAPE, UNTIED])
def test_block_parameters_leave_out_embedding_and_head(shape: Shape) -> None:
    assert block_parameters(shape) == 2 * (192 + 384)


def test_layers_with_a_bias_are_not_packable() -> None:
    assert packable_parameters(SHAPE, "llama") == 1152
    # q: 8 * 8, k and v: 8 * 4 each, in 2 layers
    assert packable_parameters(SHAPE, "qwen2") == 1152 - 2 * (64 + 32 + 32)


def test_base_bytes() -> None:
    assert base_bytes(SHAPE, 1500, FULL) == 6000
    assert base_bytes(SHAPE, 1500, HALF) == 3000
    # 1152 * 0.516 = 594.4 for the blocks, the other 348 parameters in 2 bytes
    assert base_bytes(SHAPE, 1500, Precision(value_bytes=2, is_four_bit=True)) == 594 + 696


def test_adapter_has_gradient_and_two_moments() -> None:
    # rank 2: q and o 2 * (8 + 8), k and v 2 * (8 + 4), MLP 3 * (8 + 16) = 128; * 2 ranks * 2 layers = 512 parameters
    assert adapter_bytes(SHAPE, 2) == 512 * 16


def test_engine_copies() -> None:
    assert engine_bytes(SHAPE, 1500, "llama", HALF) == 3000
    # packed: 4 bytes * (1500 scratch + 2 * 1152 forward and backward + 256 the tied head)
    assert engine_bytes(SHAPE, 1500, "llama", FULL) == 4 * (1500 + 2304 + 256)
    assert engine_bytes(UNTIED, 1500, "llama", FULL) == 4 * (1500 + 2304)


def test_cache_is_rounded_up_to_its_steps() -> None:
    assert cache_tokens(FACTS, 14) == 64
    assert cache_tokens(FACTS, 15) == 128


def test_logits_are_held_three_times_in_float32() -> None:
    assert logits_bytes(SHAPE, 10) == 10 * 32 * 4 * 3


def test_update_pass_shares_prompts() -> None:
    # 100 tokens hold a prompt of 30 and 5 completions of 12, but a group has only 4: 78 tokens, one row
    assert update_pass(SETTINGS, FACTS) == Pass(rows=1, prompt=30, completions=4, completion=12)
    wide = _config(rollout={"group_size": 4}, learning={"microbatch_tokens": 160})
    assert update_pass(wide, FACTS) == Pass(rows=2, prompt=30, completions=4, completion=12)
    # what cannot be split is a pass of its own
    narrow = _config(learning={"microbatch_tokens": 16})
    assert update_pass(narrow, FACTS) == Pass(rows=1, prompt=30, completions=1, completion=12)


def test_warm_start_pass_holds_whole_traces() -> None:
    assert warm_start_pass(SETTINGS, FACTS) == Pass(rows=2, prompt=42)
    # 2048 // 42
    assert warm_start_pass(_config(warm_start={"batch_size": 600}), FACTS) == Pass(rows=48, prompt=42)
    assert warm_start_pass(_config(warm_start={"kind": "none"}), FACTS).tokens == 0


def test_pass_counts_what_attention_keeps() -> None:
    row = Pass(rows=2, prompt=30, completions=4, completion=12)
    assert row.tokens == 2 * 78
    # a row: 4 * 78, the prompt's result 30, and 4 times (12 queries, 12 results, 42 keys, 42 values)
    assert row.attended == 2 * (312 + 30 + 4 * 108)


def test_activations_by_hand() -> None:
    row = Pass(rows=1, prompt=3, completions=1, completion=2)
    # 5 tokens; attention keeps 20 + 3 + 4 + 10 = 37 vectors of 2 * 4 values
    per_token = 4 * (4 * 8 + 4 * 16) + 4 * 7 * 2
    assert activation_bytes(SHAPE, row, 2, FULL) == 2 * (5 * per_token + 37 * 8 * 4)
    per_token = 4 * (7 * 8 + 8 + 16) + 2 * 3 * 16 + 4 * 7 * 2
    assert activation_bytes(SHAPE, row, 2, HALF) == 2 * (5 * per_token + 37 * 8 * 2)


def test_slots_are_those_of_the_widest_phase() -> None:
    # training 2 * 4, validation 3 * 2, test 2 questions 8 times and 5 once
    assert rollouts_of_test(SETTINGS, FACTS) == 21
    assert slots_used(SETTINGS, FACTS) == 21
    narrow = SETTINGS.model_copy(update={"rollout": SETTINGS.rollout.model_copy(update={"slots": 10})})
    assert slots_used(narrow, FACTS) == 10
    chunked = SETTINGS.model_copy(
        update={"rollout": SETTINGS.rollout.model_copy(update={"prompts_per_step": 3, "chunk_tokens": 5})}
    )
    assert slots_used(chunked, FACTS) == 24
    eight = SETTINGS.model_copy(
        update={"evaluation": SETTINGS.evaluation.model_copy(update={"samples_per_question": 9})}
    )
    assert rollouts_of_test(eight, FACTS) == 63


def test_memory_parts_add_up_the_formulas() -> None:
    parts = memory_parts(SETTINGS, SHAPE, 1500, "llama", FULL, FACTS)
    assert parts["base"] == 6000
    assert parts["adapter and optimizer"] == 16 * 512 * 8  # rank 16 instead of 2
    assert parts["engine copies"] == 16_240
    # 21 slots of 128 positions; a position has 2 (k, v) * 2 layers * 1 head * 4 values * 4 bytes
    assert parts["key-value cache"] == 21 * 128 * 64
    assert parts["activations"] == activation_bytes(SHAPE, update_pass(SETTINGS, FACTS), 16, FULL)
    assert parts["logits"] == logits_bytes(SHAPE, HEAD_CHUNK)


def test_samples_in_numbers() -> None:
    trace = (TraceSegment(author=Author.POLICY, text="a" * 24), TraceSegment(author=Author.TOOL, text="b" * 15))
    hint = Hint(kind=HintKind.DELAYED_CODE, text="c" * 5, position=3)
    samples = [
        Sample(id="1", question="q" * 10, answer="1", trace=trace, hints=(hint,)),
        Sample(id="2", question="q" * 30, answer="1"),
        Sample(id="3", question="q" * 30, answer="1", split=Split.VALIDATION),
        Sample(id="4", question="q" * 30, answer="1", split=Split.TEST),
    ]
    facts = task_facts(samples, "s" * 10)
    # prompts: 20 / 3 -> 7, 3 times 40 / 3 -> 14, and 12 of the template; trace: 44 / 2.2
    assert facts == TaskFacts(
        num_train=2,
        num_validation=1,
        num_test=1,
        num_traces=1,
        prompt_tokens=25,
        longest_prompt=26,
        trace_tokens=20,
    )
    assert count_tokens("abc", 2.0) == 2
    assert task_facts(samples[1:], "").trace_tokens == 0


def test_tokens_of_a_step() -> None:
    assert step_tokens(SETTINGS, FACTS) == {"at_most": 160, "expected": 96}
    resampled = SETTINGS.rollout.model_copy(update={"max_resample_rounds": 3})
    assert step_tokens(SETTINGS.model_copy(update={"rollout": resampled}), FACTS)["at_most"] == 480


def test_completion_is_half_of_the_limit_without_traces() -> None:
    bare = TaskFacts(
        num_train=1, num_validation=1, num_test=1, num_traces=0, prompt_tokens=1, longest_prompt=1, trace_tokens=0
    )
    assert completion_tokens(SETTINGS, bare) == 10
    short = SETTINGS.model_copy(update={"rollout": SETTINGS.rollout.model_copy(update={"max_tokens": 8})})
    assert completion_tokens(short, FACTS) == 8


@pytest.mark.parametrize(("steps", "expected"), [(0, 1), (1, 2), (4, 3), (5, 4)])
def test_validations_before_between_and_after(steps: int, expected: int) -> None:
    assert num_validations(_config(learning={"num_steps": steps}, evaluation={"every_steps": 2})) == expected


def test_work_of_the_phases() -> None:
    work = phase_work(SETTINGS, FACTS)
    # 4 traces, 3 epochs
    assert work["warm start"] == Work(learnt_rows=12 * 42, learnt=12 * 12)
    # 5 steps of 2 prompts, 8 rollouts of 12 tokens; one after the other 20 passes each
    assert work["GRPO rollouts"] == Work(read=300, written=480, passes=100)
    # 80 % of 40 rollouts; a row of 100 tokens holds 5 completions beside a prompt of 30, so all 4 of a group share it
    assert work["GRPO updates"] == Work(learnt_rows=round(32 * (12 + 7.5)), learnt=32 * 12)
    # 4 times 3 questions, 2 completions each
    assert work["validation"] == Work(read=360, written=288, passes=80)
    # base (to the limit), warm start, tuned: 21 completions of 7 questions each
    assert work["test"] == Work(read=630, written=21 * (20 + 24), passes=60)
    assert work["GGUF test"] == Work(read=180, written=72)


def test_work_of_rejection_sampling() -> None:
    rejection = SETTINGS.rejection.model_copy(
        update={"kind": "rft", "samples_per_question": 8, "keep_per_question": 4, "epochs": 2}
    )
    settings = SETTINGS.model_copy(update={"rejection": rejection})
    work = phase_work(settings, FACTS)
    # 80 completions of 10 questions; 40 of them and 4 traces learnt twice
    assert work["rejection"] == Work(read=300, written=960, passes=20, learnt_rows=88 * 42, learnt=88 * 12)
    # base, warm start, rejection, tuned
    assert work["test"] == Work(read=840, written=21 * (20 + 36), passes=80)
    few = rejection.model_copy(update={"keep_per_question": 1})
    assert phase_work(settings.model_copy(update={"rejection": few}), FACTS)["rejection"].learnt == 28 * 12
    # without reinforcement the last supervised stage is the tuned model
    supervised = settings.model_copy(update={"learning": settings.learning.model_copy(update={"num_steps": 0})})
    assert phase_work(supervised, FACTS)["test"] == Work(read=630, written=21 * (20 + 24), passes=60)


def test_work_of_preference_rounds() -> None:
    preference = SETTINGS.preference.model_copy(
        update={
            "kind": "verifier",
            "rounds": 2,
            "prompts_per_round": 5,
            "samples_per_question": 8,
            "pairs_per_question": 3,
            "epochs": 1,
        }
    )
    work = phase_work(SETTINGS.model_copy(update={"preference": preference}), FACTS)
    # 10 questions, 80 completions of 12 tokens, 30 pairs of two; the reference reads them too
    assert work["preference"] == Work(
        read=(10 + 60) * 30 + 60 * 12, written=960, passes=2 * 20, learnt_rows=60 * 42, learnt=60 * 12
    )
    assert work["test"].read == 840  # base, warm start, preference, tuned
    assert phase_work(SETTINGS, FACTS)["preference"] == Work()


def test_stages_that_are_off_cost_nothing() -> None:
    bare = SETTINGS.model_copy(
        update={
            "warm_start": SETTINGS.warm_start.model_copy(update={"kind": "none"}),
            "export": SETTINGS.export.model_copy(update={"formats": ()}),
        }
    )
    work = phase_work(bare, FACTS)
    assert work["warm start"] == work["rejection"] == work["GGUF test"] == Work()
    assert work["test"].written == 21 * (20 + 12)


def test_work_in_operations() -> None:
    generate, learn = work_flops(Work(read=10, written=5, learnt_rows=3, learnt=2), SHAPE, 2)
    assert generate == 2 * 1152 * 15 + 2 * 256 * 5
    assert learn == (4 * 1152 + 6 * 512) * 3 + 4 * 256 * 2
