"""`memtrade trace`: simulated steps as a trace for viewers that people know."""

from dataclasses import replace
from pathlib import Path

from memtrade.commands.profiles import foresee, simulate_all
from memtrade.commands.reading import check_folder, write_output
from memtrade.errors import MemtradeError
from memtrade.measure.flags import StepFlags, Verbose
from memtrade.results.memory_viz import to_snapshot
from memtrade.results.perfetto import to_chrome, to_trace
from memtrade.results.xplane import to_xspace
from memtrade.simulate.history import history
from memtrade.simulate.timeline import TimeSimulator

_ENDINGS = (".pftrace", ".pickle", ".json", ".json.gz", ".xplane.pb")


def trace(
    *,
    step: StepFlags = StepFlags(),
    output: Path = Path("step.pftrace"),
    verbose: Verbose = False,
) -> int:
    """Write a simulated step as a trace: compute, copies out and in, memory.

    Several strategies stand in it side by side. Nothing is run. Unless --strategy is given, it
    is original,ome.

    Parameters
    ----------
    output
        The file to write. .pftrace is for https://ui.perfetto.dev; .pickle, each request to the
        allocator, for https://pytorch.org/memory_viz; .json for chrome://tracing; .json.gz is
        the same, smaller; .xplane.pb for TensorBoard's profile plugin, which looks for it in
        plugins/profile/NAME of its folder.
    """
    if not output.name.endswith(_ENDINGS):
        raise MemtradeError(
            f"a trace is a file in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}, not "
            f"{output.name!r}: name one with --output"
        )
    check_folder(output)
    foresight = foresee(step, default=("original", "ome"), verbose=verbose)
    clock = TimeSimulator(foresight.graph, foresight.target)
    graph, about = foresight.graph, f"predicted for {foresight.target.name}"
    steps = [
        replace(step, label=f"{graph.name}, {step.label}, {about}")
        for step in simulate_all(foresight, clock)
    ]
    requests = (history(clock, each.usage) for each in steps)  # made where they are shown
    if output.suffix == ".pickle":
        made = to_snapshot(graph, [*requests])
    elif output.suffix == ".pb":
        made = to_xspace(steps, [*requests], clock.target.limit_bytes)
    elif output.suffix == ".pftrace":
        made = to_trace(steps)
    else:
        made = to_chrome(steps, compressed=output.suffix == ".gz")
    write_output(output, made, alone=True)
    return 0
