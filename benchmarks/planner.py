"""Plans one step with `optimal` in a process of its own, so that its memory is planning's alone.

    python benchmarks/planner.py GRAPH gtx-1070 '{"budget": "800MB"}'

GRAPH is a file of `StepGraph.to_bytes`. Prints a JSON object: the seconds of planning (imports and
reading the graph are not counted), on the wall's clock and on the processor, the most memory that
the process ever held, what one simulation of the planned step takes, and what the plan is worth.
"""

import json
import statistics
import sys
import time
from pathlib import Path

from memtrade.graph import StepGraph
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target

SIMULATIONS = 5


def peak_memory_bytes() -> int:
    """Of this process. Not getrusage's, which on Linux may be that of the parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("the peak of the resident set is only known on Linux")


def main(graph_path: str, device: str, options_json: str) -> None:
    graph = StepGraph.from_bytes(Path(graph_path).read_bytes())
    options = make_options("optimal", json.loads(options_json))
    target = profile_target(device)
    start, used = time.perf_counter(), time.process_time()
    plan = PLANNED["optimal"].plan(graph, options, target)
    plan_cpu_seconds = time.process_time() - used
    plan_seconds = time.perf_counter() - start
    peak_bytes = peak_memory_bytes()
    predictor = Predictor(graph, target)
    simulate_seconds = []
    for _ in range(SIMULATIONS):
        start = time.perf_counter()
        predicted = predictor.predict(plan, limit_bytes=ROOMY_BYTES)
        simulate_seconds.append(time.perf_counter() - start)
    nothing = PLANNED["original"].plan(graph, make_options("original"), target)
    original = predictor.predict(nothing, limit_bytes=ROOMY_BYTES)
    made = {
        "plan_seconds": plan_seconds,
        "plan_cpu_seconds": plan_cpu_seconds,
        "planning_peak_bytes": peak_bytes,
        "simulate_seconds": statistics.median(simulate_seconds),
        "step_peak_bytes": predicted.peak_bytes,
        "original_step_peak_bytes": original.peak_bytes,
        "overhead": predicted.step_seconds / original.step_seconds - 1,
        "gap": plan.gap,
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
