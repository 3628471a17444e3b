"""The machine: how much memory is free, what the kernel killed, what it is. No TensorFlow here."""

import dataclasses
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from memtrade.facts.surroundings import cpuinfo, usable_cores
from memtrade.graph import StepGraph
from memtrade.measure.cgroup import limited_groups, numbers, own_folder
from memtrade.version import version

Options = TypeVar("Options", bound=Any)

# The wheels that provide TensorFlow; one of them is installed.
TENSORFLOW_WHEELS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-aarch64")

# Of what the machine has free, the share that a step may take; the rest is for what else runs.
SAFE_SHARE = 0.9
# What a step takes beside the arena and the swapped tensors: TensorFlow, the traced graph, its
# kernels' caches. In results/measured less than 0.4 GB, and 0.5 GB for TensorFlow itself.
PROCESS_BYTES = 1 << 30
# Swapped tensors take up to 5% more than their bytes on the heap (results/measured).
HEAP_FACTOR = 1.05
_GRAIN_BYTES = 500_000_000  # so that the room is the same from run to run


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says of the machine and its software. Names no host and no user.

    Attributes:
        memtrade_version: of the source (`memtrade.version`).
        cores: that the process may use, and so the threads within an op unless a variable says
            otherwise.
        cpu_features: the sets of vector instructions, of which TensorFlow's kernels are chosen;
            None in records that do not know them.
        settings: the variables of the environment that choose kernels and threads, "name=value".
    """

    memtrade_version: str
    tensorflow_version: str | None
    python_version: str
    platform: str
    cpu_model: str
    cores: int
    memory_bytes: int
    cpu_features: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[str, str | None]:
        return self.memtrade_version, self.tensorflow_version

    @property
    def identity(self) -> tuple[object, ...]:
        """What of it can change a figure, the memory aside: part of a record's id."""
        return (*self.versions, self.cpu_model, self.cpu_features, self.cores, self.settings)


# Flags of /proc/cpuinfo that begin so are sets of vector instructions.
_VECTOR_FLAGS = ("amx", "avx", "f16c", "fma", "sse", "ssse")

# What TensorFlow, oneDNN and OpenMP choose kernels and the number of threads by, as the child that
# measures has it: oneDNN is on there unless the user says otherwise.
_SETTINGS = {
    "ONEDNN_MAX_CPU_ISA": "",
    "OMP_NUM_THREADS": "",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_NUM_INTEROP_THREADS": "",
    "TF_NUM_INTRAOP_THREADS": "",
}


def describe_machine() -> Machine:
    cpu = cpuinfo()
    return Machine(
        memtrade_version=version(),
        tensorflow_version=tensorflow_version(),
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_model=cpu.get("model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        memory_bytes=min(
            [psutil.virtual_memory().total, *(group.limit_bytes for group in limited_groups())]
        ),
        cpu_features=tuple(
            sorted(flag for flag in cpu.get("flags", "").split() if flag.startswith(_VECTOR_FLAGS))
        ),
        settings=tuple(
            f"{name}={value}"
            for name, usual in _SETTINGS.items()
            if (value := os.environ.get(name, usual))
        ),
    )


def tensorflow_version() -> str | None:
    """The version of the installed TensorFlow, read off its metadata, or None."""
    for wheel in TENSORFLOW_WHEELS:
        try:
            return importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the driver lists it. Sizes are None where nothing can tell them."""

    index: int
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    driver: str | None = None


def gpus() -> list[Gpu]:
    """The machine's NVIDIA GPUs, by nvidia-ml-py if it is installed, else by their device files."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]  # of the extra [gpu]
    except ImportError:
        files = sorted(Path("/dev").glob("nvidia[0-9]*"))
        return [Gpu(index=i, name="NVIDIA GPU") for i in range(len(files))]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = str(pynvml.nvmlDeviceGetName(handle))
            total, free = int(memory.total), int(memory.free)
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            found.append(
                Gpu(index=index, name=name, memory_bytes=total, free_bytes=free, driver=driver)
            )
        return found
    finally:
        pynvml.nvmlShutdown()


def free_memory_bytes() -> int:
    """Bytes that a new process can use without swapping, within the limits of the control groups
    (containers, systemd's slices, batch jobs) that this one is in."""
    left = (group.limit_bytes - group.used_bytes for group in limited_groups())
    return max(0, min([psutil.virtual_memory().available, *left]))


def room_for_swaps_bytes(free_bytes: int, device_bytes: int = 0) -> int:
    """What swapped tensors may take of that much free memory, rounded down; at least a little.

    Args:
        device_bytes: what the device takes of the machine's memory; none for a GPU.
    """
    left = SAFE_SHARE * free_bytes - device_bytes - PROCESS_BYTES
    return max(int(left / HEAP_FACTOR) // _GRAIN_BYTES, 1) * _GRAIN_BYTES


def room_bytes() -> int:
    """What a step on the CPU may take of the memory that is free now, rounded down; at least a
    little."""
    left = int(SAFE_SHARE * free_memory_bytes()) - PROCESS_BYTES
    return max(left // _GRAIN_BYTES, 1) * _GRAIN_BYTES


def within_room(options: Options, graph: StepGraph, device_bytes: int = 0) -> Options:
    """A strategy's options for a step that runs here: with this machine's room as limit of the host
    memory, if it was left open and if the step could take more. So the plan says for what room it
    was made, and where there is enough, it is the same whatever else takes memory."""
    if getattr(options, "host_memory_limit", None) != "":
        return options
    room_bytes = room_for_swaps_bytes(free_memory_bytes(), device_bytes)
    if graph.bytes_of(graph.activations) <= room_bytes:
        return options
    return dataclasses.replace(options, host_memory_limit=f"{room_bytes}B")


def highest_rss_bytes() -> int:
    """The most that this process's resident set has been (VmHWM), or its size where unknown."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return psutil.Process().memory_info().rss


def oom_kills() -> int:
    """How many processes the kernel's OOM killer has taken so far.

    Counted in this process's own control group where the kernel offers that (its children are in
    it too, and a neighbouring container is not), else over the whole machine. 0 if unknown.
    """
    for path in (
        own_folder("") / "memory.events",  # version 2
        own_folder("memory") / "memory.oom_control",  # version 1
        Path("/proc/vmstat"),
    ):
        found = numbers(path).get("oom_kill")
        if found is not None:
            return found
    return 0
