"""The medians of `make speed` as a Markdown table.

python benchmarks/speed_table.py results/speed/speed.json
"""

import json
import re
import sys
from pathlib import Path

runs = json.loads(Path(sys.argv[1]).read_text())["benchmarks"]
# The others: scale_table.py, planning_table.py.
runs = [run for run in runs if "test_speed" in run["fullname"]]
rows: dict[str, dict[int, float]] = {}
ops: dict[int, int] = {}
for run in runs:
    depth = int(re.findall(r"\d+", run["name"])[-1])
    rows.setdefault(run["group"], {})[depth] = 1e3 * run["stats"]["median"]
    ops[depth] = run["extra_info"]["ops"]
depths = sorted(ops)
print("| ms | " + " | ".join(f"ResNet-{depth}" for depth in depths) + " |")
print("|---|" + "--:|" * len(depths))
print("| ops in the step | " + " | ".join(f"{ops[depth]:,}" for depth in depths) + " |")
for group, by_depth in rows.items():
    print(f"| {group} | " + " | ".join(f"{by_depth[depth]:,.1f}" for depth in depths) + " |")
