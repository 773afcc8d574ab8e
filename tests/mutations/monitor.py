"""Mutations of the metrics, the console lines and the report."""

METRICS = "tests/unit/monitor/test_metrics.py"
GROUPS = "tests/unit/monitor/test_groups.py"
REPORT = "tests/unit/monitor/test_report.py"
PROGRESS = "tests/unit/monitor/test_progress.py"

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
]
