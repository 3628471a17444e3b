"""What a child's process environment must say before TensorFlow is imported there."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec

# The memory that TensorFlow had on the thesis's 8 GB GPU: the published tables' limit.
THESIS_LIMIT_BYTES = 7254 << 20

# Swapped tensors rest on the process heap. With these, glibc takes a copy from huge pages that
# the heap already has, in place of mapping, faulting in and unmapping fresh 4 KiB pages for each
# one: 0.4 -> 5 GB/s measured on two cores. One heap (arena_max), so that all copies reuse it.
_HEAP_TUNABLES = (
    "glibc.malloc.hugetlb=1",
    f"glibc.malloc.mmap_threshold={1 << 34}",
    f"glibc.malloc.trim_threshold={1 << 34}",
    "glibc.malloc.arena_max=1",
)


def child_environment(spec: TrialSpec, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (the parent's own variables if None) with what the device of `spec` needs."""
    env = dict(os.environ if base is None else base)
    # Warnings, too: an abort within a kernel that ran out of memory is told by the one before it.
    env["TF_CPP_MIN_LOG_LEVEL"] = "1"
    # TensorFlow turns oneDNN's kernels on by itself only where the CPU has AVX512_VNNI or AMX.
    # Said here, peaks are the same on every CPU, and steps faster; the user's own word stands.
    env.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    env["GLIBC_TUNABLES"] = _heap_tunables(env.get("GLIBC_TUNABLES", ""))
    if sys.getfilesystemencoding() == "ascii":  # other names would reach TensorFlow in pieces
        env["PYTHONUTF8"] = "1"
    package = Path(__file__).resolve().parents[2]
    if "site-packages" not in package.parts:  # started from a checkout that is not installed
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), env.get("PYTHONPATH"))))
    for name in ("TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"):
        env.pop(name, None)
    env.pop("TF_FORCE_GPU_ALLOW_GROWTH", None)
    kind, _, number = spec.device.partition(":")
    if kind == "gpu":
        # gpu:N counts among the GPUs that the user has left visible, in nvidia-smi's order.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        visible = env.get("CUDA_VISIBLE_DEVICES")
        index, left = int(number or 0), visible.split(",") if visible else []
        # A trial's own child sees one GPU only, whatever its number.
        env["CUDA_VISIBLE_DEVICES"] = left[min(index, len(left) - 1)] if left else str(index)
        return env
    limit_bytes = spec.memory_limit_bytes or default_limit_bytes()
    env["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    env["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(limit_bytes >> 20, 1))  # it means MiB
    env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def _heap_tunables(given: str) -> str:
    """The heap's settings, added to the user's own, which go first where both name one."""
    own = [each for each in given.split(":") if each]
    named = {each.partition("=")[0] for each in own}
    return ":".join([*own, *(t for t in _HEAP_TUNABLES if t.partition("=")[0] not in named)])


def default_limit_bytes(free_bytes: int | None = None) -> int:
    """The arena's limit where none is asked for.

    The thesis's GPU, if the machine has that much free and 30% more for swapped tensors and the
    process itself; else 60% of what is free, in steps of 256 MiB, so that two runs on the same
    machine mostly get the same limit.
    """
    free_bytes = host.free_memory_bytes() if free_bytes is None else free_bytes
    if free_bytes >= THESIS_LIMIT_BYTES * 1.3:
        return THESIS_LIMIT_BYTES
    step_bytes = 256 << 20
    return max(int(free_bytes * 0.6) // step_bytes, 1) * step_bytes
