"""Machines: which are alike, and how views name them. Figures of unlike machines do not mix."""

from __future__ import annotations

from collections.abc import Iterable

from memtrade.measure.host import Machine

Hardware = tuple[str, int, int]


def hardware(machine: Machine) -> Hardware:
    """What makes two machines alike, whatever software they run: CPU, cores, memory in GiB.

    The kernel keeps a little of the memory, more or less with each version: GiB are fine enough.
    """
    return machine.cpu_model, machine.cores, round(machine.memory_bytes / 2**30)


def machine_labels(machines: Iterable[Machine]) -> dict[Hardware, str]:
    """A short name for each kind of machine; the memory is named where nothing else differs."""
    kinds = sorted({hardware(machine) for machine in machines})
    short = [f"{model}, {cores} cores" for model, cores, _ in kinds]
    return {
        kind: name if short.count(name) == 1 else f"{name}, {kind[2]} GiB"
        for kind, name in zip(kinds, short, strict=True)
    }
