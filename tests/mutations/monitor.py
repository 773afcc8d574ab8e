"""Mutations of the metrics, the console lines and the report."""

METRICS = "tests/unit/monitor/test_metrics.py"
GROUPS = "tests/unit/monitor/test_groups.py"
REPORT = "tests/unit/monitor/test_report.py"
PROGRESS = "tests/unit/monitor/test_progress.py"

GUARDS, TEST_GUARDS = "edge_rl/monitor/guards.py", "tests/unit/monitor/test_guards.py"
DOCTOR, TEST_DOCTOR = "edge_rl/monitor/doctor.py", "tests/unit/monitor/test_doctor.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    ("edge_rl/monitor/metrics.py", "if report.step < first_step]", "if report.step <= first_step]", METRICS),
    ("edge_rl/monitor/metrics.py", "int(number) >= first_step", "int(number) > first_step", METRICS),
    ("edge_rl/monitor/metrics.py", "if report.step < self._next_step:", "if report.step <= self._next_step:", METRICS),
    ("edge_rl/monitor/metrics.py", "self._next_step = report.step + 1", "self._next_step = report.step", METRICS),
    ("edge_rl/monitor/metrics.py", "            _end_torn_line(run_dir", "            str(run_dir", METRICS),
    ("edge_rl/monitor/metrics.py", "*whole, _torn = path", "whole = path", METRICS),
    ("edge_rl/monitor/metrics.py", "abs(process.create_time() - self.started) < 2.0", "True", METRICS),
    ("edge_rl/monitor/metrics.py", "not math.isfinite(value) else", "math.isnan(value) else", METRICS),
    ("edge_rl/monitor/metrics.py", "if word == Control.PAUSE:", "if word == Control.STOP:", METRICS),
    ("edge_rl/monitor/groups.py", "num_correct / num_judged if", "num_correct / len(rollouts) if", GROUPS),
    (
        "edge_rl/monitor/groups.py",
        "for reward in group.rewards if reward.total is not None]",
        "for reward in group.rewards if reward.total]",
        GROUPS,
    ),
    (
        "edge_rl/monitor/groups.py",
        "sum(0 < group.num_judged == group.num_correct",
        "sum(0 <= group.num_judged == group.num_correct",
        GROUPS,
    ),
    (
        "edge_rl/monitor/groups.py",
        "sum(group.num_judged > 0 == group.num_correct",
        "sum(0 == group.num_correct",
        GROUPS,
    ),
    ("edge_rl/monitor/groups.py", "if reward.total is not None}) <= 1", "if reward.total is not None}) < 1", GROUPS),
    ("edge_rl/monitor/groups.py", "float(all(run.status", "float(any(run.status", GROUPS),
    (
        "edge_rl/monitor/groups.py",
        "for run in rollout.executions)) for rollout in with_code]",
        "for run in rollout.executions)) for rollout in rollouts]",
        GROUPS,
    ),
    ("edge_rl/monitor/groups.py", "rollout.num_policy_tokens for", "len(rollout.token_ids) for", GROUPS),
    (
        "edge_rl/monitor/report.py",
        '"interval": [row.pass_at_1.low, row.pass_at_1.high]',
        '"interval": [row.pass_at_1.high, row.pass_at_1.low]',
        REPORT,
    ),
    (
        "edge_rl/monitor/report.py",
        "if estimate.low > 0 or estimate.high < 0",
        "if estimate.low >= 0 or estimate.high < 0",
        REPORT,
    ),
    ("edge_rl/monitor/report.py", "or estimate.high < 0 else", "or estimate.high > 0 else", REPORT),
    (
        "edge_rl/monitor/curves.py",
        "values[max(0, end - window) : end]",
        "values[max(0, end - window - 1) : end]",
        REPORT,
    ),
    (
        "edge_rl/monitor/curves.py",
        "(report.step + 1.0, report.metrics[metric])",
        "(report.step + 0.0, report.metrics[metric])",
        REPORT,
    ),
    (
        "edge_rl/monitor/progress.py",
        "if math.isfinite(value) else",
        "if True else",
        PROGRESS,
    ),
    ("edge_rl/monitor/progress.py", "{report.step + 1:>3}", "{report.step:>3}", PROGRESS),
    (GUARDS, "max(entropies[-2:]) < low", "entropies[-1] < low", TEST_GUARDS),
    (GUARDS, "means[-1] < 0.5 * max(means[:-3])", "means[-1] < 0.5 * means[0]", TEST_GUARDS),
    (GUARDS, "for end in range(3, len(entropies) + 1)][-10:]", "for end in range(3, len(entropies) + 1)]", TEST_GUARDS),
    (
        GUARDS,
        "if min(falls) > limit and now.pass_at_1 > first.pass_at_1:",
        "if max(falls) > limit and now.pass_at_1 > first.pass_at_1:",
        TEST_GUARDS,
    ),
    (GUARDS, "min(falls) > limit and now.pass_at_1 > first.pass_at_1", "min(falls) > limit", TEST_GUARDS),
    (
        GUARDS,
        "max(before.pass_at_1, now.pass_at_1) <= first.pass_at_1",
        "now.pass_at_1 <= first.pass_at_1",
        TEST_GUARDS,
    ),
    (GUARDS, "rise > limit and max(", "max(", TEST_GUARDS),
    (GUARDS, " and fmean(solved[-3:]) <= fmean(solved[:3]) + 0.05", "", TEST_GUARDS),
    (GUARDS, "len(live) == settings.dead_steps and max(live)", "live and max(live)", TEST_GUARDS),
    (GUARDS, "max(live) < 1 - settings.max_dead_share", "min(live) < 1 - settings.max_dead_share", TEST_GUARDS),
    (GUARDS, "min(cut) > settings.max_truncated", "max(cut) > settings.max_truncated", TEST_GUARDS),
    (GUARDS, "len(kls) == 2 and min(kls)", "kls and max(kls)", TEST_GUARDS),
    (GUARDS, "                self.spoke[name] = now\n", "", TEST_GUARDS),
    (GUARDS, 'if action == "off" or is_quiet:', "if is_quiet:", TEST_GUARDS),
    (DOCTOR, "max(map(abs, losses)) > 0.05", "max(map(abs, losses)) < 0.05", TEST_DOCTOR),
    (DOCTOR, "if math.isfinite(value)]", "]", TEST_DOCTOR),
    (DOCTOR, "difference.low <= 0", "difference.value <= 0", TEST_DOCTOR),
    (
        DOCTOR,
        'get("gguf_vs_tuned")\n    if difference is None or difference.high >= 0',
        'get("gguf_vs_tuned")\n    if difference is None or difference.low >= 0',
        TEST_DOCTOR,
    ),
    (DOCTOR, "key=lambda diagnosis: -diagnosis.severity", "key=lambda diagnosis: diagnosis.severity", TEST_DOCTOR),
    (DOCTOR, "found if last is None else found[-last:]", "found", TEST_DOCTOR),
]
