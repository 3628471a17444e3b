"""What a trial needs of a machine, and how many trials fit side by side.

What a trial takes is known only once it has run. So a trial is granted what it may take at most:
its memory limit, and host memory for the process and for swapped tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec
from memtrade.units import megabytes

# Host memory beside the device's: the same 30% by which `default_limit_bytes` leaves room, and no
# less than a process with TensorFlow and the graph of a deep model takes.
HOST_SHARE = 0.3
LEAST_HOST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Of one trial. `memory_bytes` is the machine's own memory, which in the arena is the
    device's, too."""

    memory_bytes: int
    gpus: int


def need_of(spec: TrialSpec) -> Demand:
    limit_bytes = spec.memory_limit_bytes or 0
    on_gpu = spec.device != "arena"
    host_bytes = max(int(limit_bytes * HOST_SHARE), LEAST_HOST_BYTES)
    return Demand(memory_bytes=host_bytes + (0 if on_gpu else limit_bytes), gpus=int(on_gpu))


def jobs_that_fit(asked: int, specs: Sequence[TrialSpec]) -> tuple[int, str]:
    """How many of the trials may run at a time on this machine, `asked` at most and 1 at least,
    and why it is fewer than `asked`, or "".

    At most one per core, one per GPU that is asked for, and as many as free memory holds of the
    largest.
    """
    if not specs:
        return asked, ""
    cores = host.describe_machine().cores
    free_bytes = host.free_memory_bytes()
    largest_bytes = max(need_of(spec).memory_bytes for spec in specs)
    gpus = {spec.device for spec in specs if need_of(spec).gpus}
    bounds = [
        (cores, f"there are {cores} cores"),
        (
            free_bytes // largest_bytes,
            f"a trial may take {megabytes(largest_bytes)} MB, its limit and what it needs on the "
            f"host, and {megabytes(free_bytes)} MB are free",
        ),
    ]
    if gpus and all(need_of(spec).gpus for spec in specs):
        bounds.append((len(gpus), f"the trials use {', '.join(sorted(gpus))}, one at a time each"))
    fits, why = min(bounds, key=lambda bound: bound[0])
    fits = max(fits, 1)
    return (asked, "") if fits >= asked else (fits, why)
