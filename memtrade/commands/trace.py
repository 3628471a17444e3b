"""`memtrade trace`: simulated steps as a trace for Perfetto."""

from __future__ import annotations

from pathlib import Path

from memtrade.commands.profiles import foresee, use_all
from memtrade.commands.reading import check_folder, write_output
from memtrade.commands.run import Flag
from memtrade.measure.flags import DeviceFlags, ModelFlags, StrategyFlags
from memtrade.results.perfetto import Step, to_trace


def trace(
    *,
    model: ModelFlags | None = None,
    strategy: StrategyFlags | None = None,
    device: DeviceFlags | None = None,
    output: Path = Path("step.pftrace"),
    verbose: Flag = False,
) -> int:
    """Write a simulated step as a trace for Perfetto: compute, copies out and in, memory.

    Open the file at https://ui.perfetto.dev. Several strategies stand in it side by side. Nothing
    is run. Unless --strategy says otherwise, original and ome are traced.

    Parameters
    ----------
    output
        The file to write.
    verbose
        Pass on what TensorFlow logs.
    """
    check_folder(output)
    foresight = foresee(
        model or ModelFlags(),
        strategy or StrategyFlags(),
        device or DeviceFlags(),
        default=("original", "ome"),
        verbose=verbose,
    )
    steps = [
        Step(f"{foresight.graph.name}, {label}, predicted for {foresight.target.name}", usage)
        for label, usage in use_all(foresight)
    ]
    write_output(output, to_trace(foresight.graph, steps))
    return 0
