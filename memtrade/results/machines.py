"""Machines: which are alike, and how views name them. Figures of unlike machines do not mix."""

from collections.abc import Iterable, Sequence

from memtrade.measure.host import Machine
from memtrade.measure.records import Record

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


def unlike(records: Sequence[Record]) -> dict[str, str]:
    """What the records ran under that is not the same for all, as "one, another" in their order.
    What a record does not know, which older ones do not, differs from nothing.
    """
    return {
        name: ", ".join(values)
        for name, values in (
            ("CPU features", _features([record.machine for record in records])),
            ("threads", _each(r.runtime and str(r.runtime.intra_op_threads) for r in records)),
            ("oneDNN", _each(r.runtime and ("off", "on")[r.runtime.onednn] for r in records)),
            ("settings", _each(_settings(record.machine) for record in records)),
            ("memtrade", _each(record.machine.memtrade_version for record in records)),
        )
        if len(values) > 1
    }


def _each(values: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value is not None))


def _features(machines: Sequence[Machine]) -> list[str]:
    """What each kind of machine has that not all have."""
    known = [set(m.cpu_features) for m in machines if m.cpu_features is not None]
    shared = set.intersection(*known) if known else set()
    return _each(" ".join(sorted(each - shared)) or "fewer" for each in known)


def _settings(machine: Machine) -> str | None:
    if machine.cpu_features is None:  # a record of before either was written down
        return None
    return " ".join(machine.settings) or "none"
