"""Mutations of verifiers, extraction, expressions and rewards."""

REWARDS = "tests/unit/scoring/test_rewards.py"
SCORER = "tests/unit/scoring/test_scorer.py"
EXPRESSIONS = "tests/unit/scoring/test_expressions.py"
EXTRACTION = "tests/unit/scoring/test_extraction.py"
STRUCTURED = "tests/unit/scoring/test_structured.py"
INSTRUCTIONS = "tests/unit/scoring/test_instructions.py"
CANDIDATES = "tests/unit/scoring/test_candidates.py"
CASES = "tests/contract/test_verifiers.py::test_labelled_cases_are_all_right"
SCORING = "edge_rl/scoring/"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (SCORING + "rewards.py", "if failures and all(failures)", "if all(failures)", REWARDS),
    (SCORING + "rewards.py", "if failures and all(failures)", "if failures and any(failures)", REWARDS),
    (
        SCORING + "rewards.py",
        "math.tanh(distance / settings.length_scale) if verdict.correct else 0.0",
        "math.tanh(distance / settings.length_scale)",
        REWARDS,
    ),
    (SCORING + "rewards.py", "max(0, settings.length_low - length)", "max(0, length - settings.length_low)", REWARDS),
    (
        SCORING + "rewards.py",
        "(length - begin) / settings.overlong_buffer",
        "(length - begin) / settings.length_high",
        REWARDS,
    ),
    (SCORING + "rewards.py", "0.25 * (1.0 + math.cos", "0.5 * (1.0 + math.cos", REWARDS),
    (SCORING + "rewards.py", "-0.5 - wave", "-0.5 + wave", REWARDS),
    (
        SCORING + "rewards.py",
        "rollout.num_policy_tokens > limit or",
        "rollout.num_policy_tokens >= limit or",
        REWARDS,
    ),
    (SCORING + "rewards.py", "return max(total, middle) if correct else min(total, middle)", "return total", REWARDS),
    (SCORING + "rewards.py", "len(commitment.values) == 1", "len(commitment.values) >= 1", REWARDS),
    (SCORING + "group_rewards.py", "part = 0.0 if verdict.correct else", "part =", REWARDS),
    (
        SCORING + "group_rewards.py",
        "execution.status is ExecutionStatus.OK and state_ok",
        "execution.status is ExecutionStatus.OK",
        REWARDS,
    ),
    (SCORING + "model_rewards.py", "if len(found) == 1 else None", "if found else None", REWARDS),
    (SCORING + "model_rewards.py", '.replace("</completion>", "< /completion>")', "", REWARDS),
    (SCORING + "scorer.py", "return judge_text(rollout.policy_text,", "return judge_text(rollout.text,", SCORER),
    (SCORING + "scorer.py", 'correct=False, reason="truncated"', 'correct=None, reason="truncated"', SCORER),
    (
        SCORING + "scorer.py",
        'correct=None, reason="generation failed"',
        'correct=False, reason="generation failed"',
        SCORER,
    ),
    (
        SCORING + "scorer.py",
        'return Verdict(correct=None, reason=str(error), route="verifier_failed")\n    except EdgeRLError',
        'return Verdict(correct=False, reason=str(error), route="verifier_failed")\n    except EdgeRLError',
        SCORER,
    ),
    (SCORING + "scorer.py", "if empty.correct is not False:", "if empty.correct is True:", SCORER),
    (SCORING + "extraction.py", "if last_open > last_close:", "if False:", EXTRACTION),
    (SCORING + "extraction.py", 'return Commitment((), "nothing", "the box is cut off")', "pass", EXTRACTION),
    (SCORING + "extraction.py", "if is_withdrawn(rest):", "if False:", EXTRACTION),
    (
        SCORING + "extraction.py",
        "standing = [span for span in spans if not _is_denied(text, span)]",
        "standing = list(spans)",
        EXTRACTION,
    ),
    (SCORING + "extraction.py", "return not FINAL.search(gap)", "return False", EXTRACTION),
    (SCORING + "extraction.py", "if HEDGE.search(gap):", "if False:", CASES),
    (SCORING + "statements.py", "if CODE_TEXT.search(line):", "if False:", EXTRACTION),
    (SCORING + "statements.py", 'content = DENIED_TAIL.sub("", content)', "pass", EXTRACTION),
    (SCORING + "statements.py", 'content = REASON.sub("", content)', "pass", EXTRACTION),
    (SCORING + "expressions/characters.py", "text = SUPERSCRIPT_RUN.sub", "SUPERSCRIPT_RUN.sub", EXPRESSIONS),
    (SCORING + "expressions/characters.py", "text = VULGAR_FRACTION.sub", "VULGAR_FRACTION.sub", EXPRESSIONS),
    (SCORING + "expressions/characters.py", 'if unicodedata.category(character) != "Cf"', "", EXPRESSIONS),
    (
        SCORING + "expressions/parser.py",
        "if not is_plain or not 0 < part.args[0].value < part.args[1].value:",
        "if True:",
        EXPRESSIONS,
    ),
    (SCORING + "expressions/parser.py", 'raise ExpressionError("two numbers side by side")', "pass", EXPRESSIONS),
    (SCORING + "expressions/parser.py", 'node = Node("div", args=(node, number(100)))', "pass", EXPRESSIONS),
    (
        SCORING + "expressions/exact.py",
        'raise TooLargeError("a power too large to work with")',
        "return None",
        EXPRESSIONS,
    ),
    (SCORING + "expressions/exact.py", "return None if atoms else False", "return False", EXPRESSIONS),
    (SCORING + "expressions/exact.py", "return low if low**index == value else None", "return low", EXPRESSIONS),
    (SCORING + "expressions/equality.py", 'return Outcome(False, "digits")', "pass", EXPRESSIONS),
    (
        SCORING + "expressions/equality.py",
        "and unit_name(gold.name) != unit_name(given.name)",
        "and False",
        EXPRESSIONS,
    ),
    (SCORING + "expressions/intervals.py", "if one.closed != other.closed:", "if False:", EXPRESSIONS),
    (
        SCORING + "expressions/intervals.py",
        "low.place == high.place and (low.closed or high.closed)",
        "low.place == high.place",
        EXPRESSIONS,
    ),
    (
        SCORING + "expressions/answers.py",
        "is_alike = gold.op == given.op and gold.name == given.name",
        "is_alike = gold.op == given.op",
        EXPRESSIONS,
    ),
    (
        SCORING + "expressions/answers.py",
        "first[0] * second[place] == second[0] * first[place]",
        "first[0] * first[place] == second[0] * second[place]",
        EXPRESSIONS,
    ),
    (SCORING + "wording.py", "or DENIES.search(sentence)", "", CASES),
    (
        SCORING + "wording.py",
        "return is_boundary and (last in BEFORE_ANSWER",
        "return bool(last) or (last in BEFORE_ANSWER",
        CASES,
    ),
    (SCORING + "verifiers/code_output.py", "if len(expected) != len(printed):", "if False:", CASES),
    (SCORING + "structured.py", "return left is right", "return left == right", STRUCTURED),
    (SCORING + "structured.py", "if len(members) != len(pairs):", "if False:", STRUCTURED),
    (SCORING + "calls.py", 'if key not in call.arguments and "" not in options:', "if False:", STRUCTURED),
    (SCORING + "calls.py", "open_calls.pop(problems.index(None))", "pass", STRUCTURED),
    (SCORING + "instructions.py", '"less than": count < wanted', '"less than": count <= wanted', INSTRUCTIONS),
    (SCORING + "candidates.py", 'return TestRun(kind == "pass"', 'return TestRun(kind != "need"', CANDIDATES),
    (
        SCORING + "candidates.py",
        "- functions",
        "",
        CANDIDATES,
    ),
    (SCORING + "group_rewards.py", "2 * sum(judged) >= len(judged)", "2 * sum(judged) > len(judged)", REWARDS),
    (SCORING + "group_rewards.py", "2 * sum(judged) >= len(judged)", "2 * sum(judged) >= len(verdicts)", REWARDS),
    (SCORING + "group_rewards.py", "if not verdict.correct and right:", "if right:", REWARDS),
    (SCORING + "group_rewards.py", "if verdict.correct and code]", "if verdict.correct]", REWARDS),
    (SCORING + "group_rewards.py", "len(code & other) / len(code | other)", "len(code & other) / len(other)", REWARDS),
    (SCORING + "scorer.py", ' and self._settings.truncated == "left_out"', "", SCORER),
    (
        SCORING + "scorer.py",
        "threads.map(self._judge_for_training, rollouts)",
        "threads.map(self.judge, rollouts)",
        SCORER,
    ),
]
