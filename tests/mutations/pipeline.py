"""Mutations of the plan's formulas, and of how a run stops, goes on and refuses."""

ESTIMATES = "edge_rl/pipeline/estimates.py"
PLAN = "edge_rl/pipeline/plan.py"
TRAINING = "edge_rl/pipeline/training.py"
FOLDER = "edge_rl/pipeline/run_folder.py"
MEASURING = "edge_rl/pipeline/measuring.py"
UNIT = "tests/unit/pipeline/test_estimates.py"
UNIT_PLAN = "tests/unit/pipeline/test_plan.py"
RUNS = "tests/e2e/test_train_cpu.py"
MISTAKES = "tests/e2e/test_bad_input.py"
EVAL = "tests/e2e/test_eval.py"

TRUST, TEST_TRUST = "edge_rl/pipeline/trust.py", "tests/unit/pipeline/test_trust.py"
LEARNER = "edge_rl/learning/learner.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (ESTIMATES, "shape.vocab * shape.hidden * (1 if shape.tied else 2)", "shape.vocab * shape.hidden", UNIT),
    (ESTIMATES, "(shape.heads + 2 * shape.kv_heads)", "(shape.heads + shape.kv_heads)", UNIT),
    (ESTIMATES, "(parameters - blocks) * precision.value_bytes", "parameters * precision.value_bytes", UNIT),
    (ESTIMATES, "return 16 * shape.lora_parameters(rank)", "return 12 * shape.lora_parameters(rank)", UNIT),
    (ESTIMATES, "(2 * packable_parameters(shape, family) + head)", "(packable_parameters(shape, family) + head)", UNIT),
    (ESTIMATES, "head = shape.vocab * shape.hidden if shape.tied else 0", "head = shape.vocab * shape.hidden", UNIT),
    (ESTIMATES, "return -(-(facts.longest_prompt + max_tokens)", "return ((facts.longest_prompt + max_tokens)", UNIT),
    (ESTIMATES, "per_token = 4 * (4 * hidden + 4 * inner)", "per_token = 4 * (4 * hidden + 3 * inner)", UNIT_PLAN),
    (ESTIMATES, "4 * (7 * hidden + attention + inner)", "4 * (4 * hidden + attention + inner)", UNIT_PLAN),
    (ESTIMATES, "2 * (self.prompt + self.completion))", "2 * self.completion)", UNIT_PLAN),
    (ESTIMATES, "return 3 * 4 * rows * shape.vocab", "return 4 * rows * shape.vocab", UNIT),
    (ESTIMATES, "under_way = 2 if settings.chunk_tokens", "under_way = 1 if settings.chunk_tokens", UNIT),
    (ESTIMATES, "if settings.samples_per_question < 8 else 0", "", UNIT),
    (ESTIMATES, "return 1 + math.ceil(steps / every)", "return 1 + steps // every", UNIT),
    (ESTIMATES, "return min(expected, config.rollout.max_tokens)", "return expected", UNIT),
    (ESTIMATES, "config.rollout.max_tokens * config.rollout.max_resample_rounds", "config.rollout.max_tokens", UNIT),
    (ESTIMATES, "written=test * (settings.max_tokens + tuned * length)", "written=test * (1 + tuned) * length", UNIT),
    (ESTIMATES, "generate = 2 * blocks * (work.read + work.written)", "generate = 2 * blocks * work.written", UNIT),
    (ESTIMATES, "blocks + 6 * shape.lora_parameters(rank)", "blocks + 4 * shape.lora_parameters(rank)", UNIT),
    (ESTIMATES, "4 * head * work.learnt\n", "2 * head * work.learnt\n", UNIT),
    (PLAN, '"fits": total <= available', '"fits": True', UNIT_PLAN),
    (
        PLAN,
        'seconds[phase] = generating + learn / (rates["update_gflops"]',
        "seconds[phase] = generating + learn / (100.0",
        UNIT_PLAN,
    ),
    (PLAN, "check_quantisation(config.model, device)", "device.type", UNIT_PLAN),
    (TRAINING, "self._step not in [item.step for item in self._validations]", "not self._validations", RUNS),
    (
        TRAINING,
        "            self.save()\n            raise Stopped\n        release_free_memory()\n        self._progress",
        "            raise Stopped\n        release_free_memory()\n        self._progress",
        RUNS,
    ),
    (FOLDER, "if path.exists() and _has_begun(run_dir):", "if path.exists():", MISTAKES),
    (FOLDER, "if path.exists() and _has_begun(run_dir):", "if False:", MISTAKES),
    (FOLDER, "if error.errno not in DISK_ERRORS:", "if error:", MISTAKES),
    (MEASURING, "load_adapter_weights(parts.model, adapter)", "pass", EVAL),
    (MEASURING, "if path.exists():", "if False:", EVAL),
    (TRUST, "    if own > tolerance and base <= tolerance:\n", "    if base <= tolerance:\n", TEST_TRUST),
    (TRUST, "    if own > tolerance:\n        raise", "    if own > 1e9:\n        raise", TEST_TRUST),
    (TRUST, "QUANTISED_TOLERANCE if is_quantised else TOLERANCE[dtype]", "TOLERANCE[dtype]", TEST_TRUST),
    (TRUST, "if policy_version in rollout.policy_versions), None)", "), None)", TEST_TRUST),
    (
        LEARNER,
        "with self.model.disable_adapter():\n                base_N",
        "if True:\n                base_N",
        TEST_TRUST,
    ),
    (LEARNER, "(own_N - engine_N)[is_fresh_N].abs()", "(own_N - engine_N).abs()", TEST_TRUST),
    ("edge_rl/weights/adapters.py", '    if found != facts["checksum"]:\n', "    if False:\n", TEST_TRUST),
]
