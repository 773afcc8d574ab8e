"""Mutations of the data stage; see tests/mutate.py."""

SEEDS, HINTS, PROMPTS = "edge_rl/data/seeds.py", "edge_rl/data/hints.py", "edge_rl/data/prompts.py"
SAMPLER, TASKS = "edge_rl/data/sampler.py", "edge_rl/data/tasks.py"
TEST_SEEDS, TEST_HINTS = "tests/unit/data/test_seeds.py", "tests/unit/data/test_hints.py"
TEST_PROMPTS, TEST_SAMPLER = "tests/unit/data/test_prompts.py", "tests/unit/data/test_sampler.py"
TEST_TASKS, TEST_TOOL_MATH = "tests/unit/data/test_tasks.py", "tests/unit/data/test_tool_math.py"

SHOTS, TEST_SHOTS = "edge_rl/data/shots.py", "tests/unit/data/test_shots.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (SEEDS, "enumerate(text.split(", "enumerate(text.splitlines() or text.split(", TEST_SEEDS),
    (SEEDS, 'encoding="utf-8-sig"', 'encoding="utf-8"', TEST_SEEDS),
    (SEEDS, 'extra="forbid", strict=True', 'extra="ignore", strict=True', TEST_SEEDS),
    (SEEDS, "        if sample.id in first_line:\n", "        if False:\n", TEST_SEEDS),
    (SEEDS, "if not self.answer.strip() and not self.tests", "if not self.answer and not self.tests", TEST_SEEDS),
    (SEEDS, "        partial.unlink(missing_ok=True)\n            raise", "        raise", TEST_SEEDS),
    (HINTS, "waiting[0][0] < end", "waiting[0][0] <= end", TEST_HINTS),
    (HINTS, "            cut = position\n", "", TEST_HINTS),
    (HINTS, "if segment.author is Author.TOOL:", "if segment.author is Author.TOOL and position > start:", TEST_HINTS),
    (HINTS, "            offset += len(segment.text)\n", "            offset += len(segment.text) + 1\n", TEST_HINTS),
    (HINTS, "        is_after_hint = segment.author is Author.HINT\n", "", TEST_HINTS),
    (HINTS, " and segment.author is not Author.HINT:\n            merged", ":\n            merged", TEST_HINTS),
    (PROMPTS, "[not is_tool] * len(run_ids)", "[True] * len(run_ids)", TEST_PROMPTS),
    (PROMPTS, "(*loss_mask, True)", "(*loss_mask, False)", TEST_PROMPTS),
    (PROMPTS, "if hint.position is not None]", "if hint.position]", TEST_PROMPTS),
    (PROMPTS, "token_ids[:2] == [bos, bos]", "token_ids[:2] == [bos, None]", TEST_PROMPTS),
    (PROMPTS, "            token_ids.pop()  #", "            pass  #", TEST_PROMPTS),
    (
        PROMPTS,
        "encode(text, add_special_tokens=False))  #",
        "encode(text, add_special_tokens=True))  #",
        TEST_PROMPTS,
    ),
    (TASKS, "form.is_whole or ", "", TEST_TASKS),
    (TASKS, 're.fullmatch(r"\\d+0", text)', "not text", TEST_TASKS),
    (SAMPLER, "EMA_DECAY * past + (1 - EMA_DECAY) * solve_rate", "solve_rate", TEST_SAMPLER),
    (SAMPLER, "success > SOLVED_ABOVE", "success >= SOLVED_ABOVE", TEST_SAMPLER),
    (SAMPLER, "success < DEAD_BELOW", "success <= DEAD_BELOW", TEST_SAMPLER),
    (SAMPLER, ">= MIN_VISITS", "> MIN_VISITS", TEST_SAMPLER),
    (SAMPLER, "self._epoch + self._park_epochs + 1", "self._epoch + self._park_epochs", TEST_SAMPLER),
    (SAMPLER, "            self._parked.pop(sample_id, None)", "            pass", TEST_SAMPLER),
    (SAMPLER, "if name not in batch), self", "if name), self", TEST_SAMPLER),
    (SAMPLER, "max(0, n - (len(self._ids) - len(by_due)))", "0", TEST_SAMPLER),
    (SAMPLER, '"sampler", self._epoch)', '"sampler", 0)', TEST_SAMPLER),
    (SAMPLER, '        self._pending = list(state["pending"])\n', "", TEST_SAMPLER),
    (TASKS, "(exact * 100).denominator != 1", "(exact * 1000).denominator != 1", TEST_TASKS),
    (TASKS, "or answer in shown:", "or not answer:", TEST_TASKS),
    (TASKS, "    if printed <= 0:\n        return None\n", "", TEST_TASKS),
    (TASKS, 'v["a"] * v["b"] / 100', 'v["a"] * v["b"] / 10', TEST_TASKS),
    (TASKS, '(v["a"] - 1) // v["c"]', 'v["a"] // v["c"]', TEST_TASKS),
    (TASKS, 'code="print({a} % {b})"', 'code="print({a} // {b})"', TEST_TOOL_MATH),
    (SHOTS, "len(self.rates) >= WINDOW and ", "", TEST_SHOTS),
    (SHOTS, "len(self.rates) * len(self.stages) >= self.num_steps", "len(self.rates) >= self.num_steps", TEST_SHOTS),
    (SHOTS, "            self.rates = []\n", "", TEST_SHOTS),
    (SHOTS, "if other.id != sample.id and other.question != sample.question", "if other.id != sample.id", TEST_SHOTS),
    (PROMPTS, "*rest],\n    ]", "],\n    ]", TEST_PROMPTS),
    (PROMPTS, "shots=len(examples))", "shots=0)", TEST_SHOTS),
    (SAMPLER, "self._success.get(name, UNMET), reverse=True)", "self._success.get(name, UNMET))", TEST_SAMPLER),
    (SAMPLER, "self._success.get(name, UNMET)", "self._success.get(name, 0.0)", TEST_SAMPLER),
    (SAMPLER, "size = -(-len(names) // parts)", "size = len(names) // parts or 1", TEST_SAMPLER),
]
