"""`memtrade facts`: which kernels are known here, where each figure comes from, how old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.table import Table

from memtrade.commands.run import Flag
from memtrade.commands.screen import stdout
from memtrade.facts import CPU, cache, reuse, shipped
from memtrade.facts.learned import Learned
from memtrade.measure.environment import child_environment
from memtrade.measure.here import surroundings_of
from memtrade.measure.protocol import TrialSpec
from memtrade.results.tables import NONE
from memtrade.target import ARENA
from memtrade.units import megabytes


def facts(*, kernels: Flag = False, forget: Flag = False) -> int:
    """List what is known of kernels: what they ask the allocator for, and how long they take.

    Facts are learned where they are used, when a step is first planned or run, and kept in the
    user's cache folder; others come with memtrade.

    Parameters
    ----------
    kernels
        Also a line for each kernel that is known on this machine as it is now.
    forget
        Remove all that was learned here, so that it is learned anew.
    """
    console = stdout()
    if forget:
        removed = [path for path, _, _ in cache.all_files()]
        for path in removed:
            path.unlink(missing_ok=True)
        console.print(f"{len(removed)} files of facts removed from {cache.folder()}")
        return 0
    here = surroundings_of(ARENA, child_environment(TrialSpec(device=ARENA)))
    table = Table(title=f"learned, in {cache.folder()}", title_justify="left")
    for name in ("device", "cpu", "TensorFlow", "oneDNN", "threads", "kernels", "of them", "days"):
        table.add_column(name, justify="right" if name in ("threads", "kernels") else "left")
    for _, where, known in cache.all_files():
        ran = ("on" if known.rates.onednn else "off") if known.rates else NONE
        limited = f", at most {where.instructions}" if where.instructions else ""
        table.add_row(
            where.device + (" (here, now)" if where == here else ""),
            where.cpu,
            where.tensorflow,
            f"{ran} (environment: {where.onednn or 'unset'}{limited})",
            str(where.threads),
            f"{len(known.table):,}",
            _sources(known.table),
            _days(known.table),
        )
    console.print(table if table.row_count else f"nothing is learned yet in {cache.folder()}")
    console.print()
    console.print(f"shipped, {CPU}: {shipped(CPU).source}")
    console.print(f"shipped, whose buffer a kernel takes: {reuse().source}")
    if kernels:
        console.print()
        console.print(_kernels(cache.FactsFile(here).read().table))
    return 0


def _sources(table: Mapping[str, Learned]) -> str:
    """How many were asked, fitted and refused, and how many beside a busy machine."""
    counted = Counter(each.source.split(" ", 1)[0].rstrip(":") for each in table.values())
    counted["timed on a busy machine"] = sum(each.disturbed for each in table.values())
    return ", ".join(f"{number:,} {what}" for what, number in counted.items() if number)


def _days(table: Mapping[str, Learned]) -> str:
    days = sorted({each.on for each in table.values()})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else NONE


def _kernels(known: Mapping[str, Learned]) -> Table:
    table = Table()
    for name in ("kernel", "outputs MB", "scratch MB", "margin MB", "ms", "source", "day"):
        table.add_column(name, justify="right" if name[-2:] in ("MB", "ms") else "left")
    for each in sorted(known.values(), key=lambda each: each.kernel):
        made = [sum(size for size, slot in each.requests if (slot < 0) is s) for s in (False, True)]
        table.add_row(
            each.kernel,
            *(megabytes(size) for size in made),
            megabytes(each.margin_bytes) if each.margin_bytes else "",
            NONE if each.seconds is None else f"{each.seconds * 1e3:.3f}",
            each.source + (", on a busy machine" if each.disturbed else ""),
            each.on,
        )
    return table
