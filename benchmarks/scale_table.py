"""What `pytest benchmarks/test_scale.py --benchmark-json=FILE` measured, as a Markdown table.

    python benchmarks/scale_table.py results/speed/scale.json > results/speed/scale.md

Seconds, and behind them microseconds per op of the step: where these stay the same from one depth
to the next, the cost is linear.
"""

import json
import sys
from pathlib import Path

runs = json.loads(Path(sys.argv[1]).read_text())["benchmarks"]
runs = [run for run in runs if "step" in run["extra_info"]]
steps = {run["extra_info"]["step"]: run["extra_info"]["ops"] for run in runs}
rows: dict[str, dict[str, float]] = {}
for run in runs:
    rows.setdefault(run["group"], {})[run["extra_info"]["step"]] = run["stats"]["median"]
print("| seconds (µs per op) | " + " | ".join(steps) + " |")
print("|---|" + "--:|" * len(steps))
print("| ops in the step | " + " | ".join(f"{ops:,}" for ops in steps.values()) + " |")
for group, seconds in rows.items():
    cells = (f"{seconds[step]:.1f} ({1e6 * seconds[step] / steps[step]:.0f})" for step in steps)
    print(f"| {group} | " + " | ".join(cells) + " |")
