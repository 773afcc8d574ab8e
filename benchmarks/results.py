"""Print the results table of README from the reports of some runs.

python benchmarks/results.py runs/default-smollm2-135m-seed*
"""

import json
import sys
from pathlib import Path
from typing import Any

HEAD = ("seed", "", "pass@1", "95 % interval", "pass@8", "code share", "tokens")


def main(argv: list[str]) -> int:
    """Write the table to stdout."""
    if not argv:
        sys.stderr.write("usage: python benchmarks/results.py RUN_FOLDER...\n")
        return 2
    reports = [json.loads((Path(folder) / "report.json").read_text(encoding="utf-8")) for folder in argv]
    sys.stdout.write("\n".join([*table(reports), "", *facts(reports)]) + "\n")
    return 0


def table(reports: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table, a row for each checkpoint of each run."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for report in reports:
        for row in report["rows"]:
            low, high = row["interval"]
            lines.append(
                _line(
                    [
                        report["seed"],
                        row["name"],
                        _percent(row["pass_at_1"]),
                        f"{_percent(low)} to {_percent(high)}",
                        "" if row["pass_at_8"] is None else _percent(row["pass_at_8"]),
                        _percent(row["code_share"], digits=0),
                        f"{row['tokens']:.0f}",
                    ]
                )
            )
    return lines


def facts(reports: list[dict[str, Any]]) -> list[str]:
    """Return a line for each run: paired differences in points with their intervals, minutes, peak memory."""
    return [
        f"- Seed {report['seed']}: "
        + "; ".join(
            f"{name.replace('_vs_', ' against ').replace('_', ' ')} {100 * pair['diff']:+.1f} points "
            f"({100 * pair['low']:+.1f} to {100 * pair['high']:+.1f})"
            for name, pair in report["paired"].items()
        )
        + "".join(
            f"; pass@8 on {pair['questions']} questions, {name.replace('_vs_', ' against ').replace('_', ' ')}, "
            f"{100 * pair['diff']:+.1f} ({100 * pair['low']:+.1f} to {100 * pair['high']:+.1f})"
            for name, pair in report.get("paired_at_8", {}).items()
        )
        + f"; {report['minutes']:.1f} minutes without set-up, peak memory {report['peak_rss_mb'] / 1024:.1f} GiB."
        for report in reports
    ]


def _line(cells: Any) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _percent(share: float, *, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
