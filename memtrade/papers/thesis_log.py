"""A record as the thesis' benchmark would have logged it; `published/README.md` describes its log.

    Running with checkpoints
    ('max_mem:', 0.00128, 'mem_used:', 0.00128)               before there are variables
    ('max_mem:', 151.00672, 'mem_used:', 141.913088)          with them
    ('max_mem:', 514.143232, 'mem_used:', 141.918208)         after each step
    ...
    --- Size:18
    |______ memory_cost:372.48224, execute_time:0.183         of each step
    ...
    sleep 5 sec

MB are 10^6 bytes. `max_mem` is the highest so far, over all steps; `memory_cost` a step's own peak
less what persists; what LMS says of itself and what OME swaps stand before the memory lines. The
benchmark printed no host memory, which the thesis' tables have: a last line says it in the words of
the thesis' notes.
"""

from collections.abc import Iterable
from itertools import accumulate

from memtrade.errors import MemtradeError
from memtrade.measure.protocol import Measured, NamedCheckpoint, PlanSummary
from memtrade.measure.records import Record

# How many steps the benchmark ran, counted ones and its first alike.
STEPS = 9

HEADS = {
    "original": "Running without checkpoints",
    "checkpoints": "Running with checkpoints",
    "lms": "Running with tensorflow_large_model_support",
    "ome": "Running with OME",
}
# What the benchmark prints as the size of a net that has no depth.
NO_DEPTH = 50


def thesis_log(records: Iterable[Record]) -> str:
    """The log of all records whose strategies the thesis has, in their order.

    Raises:
        MemtradeError: there is none, or one that has no figure of the memory between steps.
    """
    parts: list[str] = []
    running = ""
    for record in records:
        strategy = record.spec.strategy
        if strategy in HEADS:
            parts += [f"{HEADS[strategy]}\n"] if strategy != running else []
            parts.append("\n".join(_run(record)) + "\n")
            running = strategy
    if not parts:
        raise MemtradeError(
            f"the thesis' log knows {', '.join(HEADS)}: there is no record of one of them"
        )
    return "".join(parts)


def _run(record: Record) -> list[str]:
    measured, plan, strategy = record.measured, record.plan, record.spec.strategy
    lines: list[str] = []
    if strategy == "lms" and plan is not None:
        lines += _edits(record, plan)
    if strategy == "ome" and plan is not None:
        lines += disconnected_lines(plan.checkpoints or ())
    size = record.spec.model_options.get("layers", NO_DEPTH)
    if measured is None:  # as the benchmark leaves a step that does not fit
        return [*lines, f"--- Size:{size}", "sleep 5 sec"]
    lines += _memory(measured, record.filename)
    lines.append(f"--- Size:{size}")
    seconds = (*measured.warmup_seconds, *measured.step_seconds)
    for peak_bytes, took in zip(measured.peak_bytes_by_step, seconds, strict=True):
        cost = (peak_bytes - measured.persistent_bytes) / 1e6
        lines.append(step_line(strategy, cost, took))
    return [*lines, "sleep 5 sec", f"cpu used :{measured.host_bytes / 1e9:.2f}"]


def _memory(measured: Measured, name: str) -> list[str]:
    if not measured.in_use_bytes:
        raise MemtradeError(
            f"{name} does not say what was in use between its steps: measure it again, memtrade "
            "has looked at it only since"
        )
    before, ready, *after = measured.in_use_bytes
    most = [before, *accumulate((ready, *measured.peak_bytes_by_step), max)]
    return [
        memory_line(high / 1e6, used / 1e6)
        for high, used in zip(most, (before, ready, *after), strict=True)
    ]


def memory_line(most_mb: float, used_mb: float) -> str:
    return f"('max_mem:', {most_mb!r}, 'mem_used:', {used_mb!r})"


def step_line(strategy: str, cost_mb: float, seconds: float) -> str:
    bar = "|_____" if strategy in ("lms", "ome") else "|______"
    return f"{bar} memory_cost:{cost_mb!r}, execute_time:{seconds:.3f}"


def _edits(record: Record, plan: PlanSummary) -> list[str]:
    options = record.spec.strategy_options
    count = options.get("n_tensors", -1)
    said = [
        "Editing model for LMS",
        f"n_tensors: {'all tensors' if count < 0 else count}",
        f"lb: {options.get('lb', 1)}",
        # The plan was checked against the graph before it was carried out.
        "Edited model is valid and logically equivalent to the original one",
    ]
    if plan.ops_added is not None:
        said.append(f"Added {plan.ops_added} ops into the model")
    if record.measured is not None:
        took = record.measured.plan_seconds + record.measured.rewrite_seconds
        said.append(f"Editing model for LMS, took: {1e3 * took!r} ms")
    said.append(f"{plan.swapped} tensors will be swapped out(in) to(from) the host")
    return [f"INFO:tensorflow:[LMS][0] {line}" for line in said]


def disconnected_lines(checkpoints: tuple[NamedCheckpoint, ...]) -> list[str]:
    lines = [f"total checkpoints disconnected count : {len(checkpoints)}"]
    for each in checkpoints:
        what = "swap out" if each.decision == "swap" else "checkpoints but not swap out"
        lines.append(
            f'{what} to /cpu: Tensor("{each.tensor}", shape={each.shape}, dtype={each.dtype})'
        )
    return lines
