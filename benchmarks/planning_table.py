"""What `pytest benchmarks/test_planning.py --benchmark-json=FILE` measured, as a Markdown table.

python benchmarks/planning_table.py results/speed/planning.json
"""

import json
import sys
from pathlib import Path

COLUMNS = (
    "step",
    "ops",
    "goal",
    "planning s",
    "planning's peak MB",
    "simulating s",
    "peak MB, from → to",
    "time",
    "gap",
)

runs = [
    run
    for run in json.loads(Path(sys.argv[1]).read_text())["benchmarks"]
    if "test_planning" in run["fullname"]
]
print("| " + " | ".join(COLUMNS) + " |")
print("|---|--:|---|" + "--:|" * (len(COLUMNS) - 3))
for run in runs:
    made = run["extra_info"]
    row = (
        made["step"],
        f"{made['ops']:,}",
        run["params"]["goal"],
        f"{made['plan_seconds']:.1f}",
        f"{made['planning_peak_bytes'] / 1e6:,.0f}",
        f"{made['simulate_seconds']:.3f}",
        f"{made['original_step_peak_bytes'] / 1e6:,.0f} → {made['step_peak_bytes'] / 1e6:,.0f}",
        f"{100 * made['overhead']:+.1f}%",
        "–" if made["gap"] is None else f"{100 * made['gap']:.1f}%",
    )
    print("| " + " | ".join(row) + " |")
if runs:
    targets = runs[0]["extra_info"]["targets"]
    print(
        f"| **target** | | | ≤ {targets['plan_seconds']:g} | "
        f"≤ {targets['planning_peak_bytes'] / 1e6:,.0f} | ≤ {targets['simulate_seconds']:g} | | | |"
    )
