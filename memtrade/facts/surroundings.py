"""Where facts hold: what decides which kernels TensorFlow runs, and so what they ask for."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

# What users say of oneDNN: whether it runs, and which instructions it may use.
ONEDNN, INSTRUCTIONS = "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of process on one kind of machine.

    Attributes:
        device: "cpu", or the card's name and its driver's version.
        tensorflow: the version of the wheel, which brings oneDNN or cuDNN along.
        cpu: the processor's name and a digest of its features.
        onednn: what the environment says of it; "" leaves it to TensorFlow.
        instructions: the most that oneDNN may use; "" for all that there are.
        threads: that a kernel may use.
    """

    device: str
    tensorflow: str
    cpu: str
    onednn: str
    instructions: str
    threads: int
    form: int = 7  # of the questions: answers to others are not read

    @property
    def key(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def surroundings(device: str, tensorflow: str, environment: Mapping[str, str]) -> Surroundings:
    """Those of a process that starts here with that environment."""
    return Surroundings(
        device=device,
        tensorflow=tensorflow,
        cpu=cpu_text(),
        onednn=environment.get(ONEDNN, ""),
        instructions=environment.get(INSTRUCTIONS, ""),
        threads=thread_count(environment),
    )


def thread_count(environment: Mapping[str, str]) -> int:
    """How many threads TensorFlow gives a kernel: as told, or as many as this process may use."""
    told = environment.get("TF_NUM_INTRAOP_THREADS", "")
    if told.isdecimal() and int(told):
        return int(told)
    return usable_cores()


def usable_cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpuinfo() -> dict[str, str]:
    """What the kernel says of the first processor; nothing where it says nothing."""
    found: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def cpu_text() -> str:
    """The processor's name and a digest of its features: two machines may share the name."""
    found = cpuinfo()
    features = " ".join(sorted(found.get("flags", found.get("Features", "")).split()))
    digest = hashlib.sha256(features.encode()).hexdigest()[:8]
    return f"{found.get('model name', 'unknown')} ({digest})"
