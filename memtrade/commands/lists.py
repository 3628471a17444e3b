"""What there is: `memtrade models`, `strategies`, `devices`; what is known of kernels: `facts`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from memtrade.commands.screen import show, stdout
from memtrade.devices import device_names, load_device
from memtrade.facts import CPU, cache, most_bytes, reuse, shipped
from memtrade.facts.learned import Learned
from memtrade.facts.surroundings import Surroundings
from memtrade.measure import host
from memtrade.measure.environment import child_environment, default_limit_bytes
from memtrade.measure.flags import Flag
from memtrade.measure.here import surroundings_of
from memtrade.measure.protocol import TrialSpec
from memtrade.models import MODELS, Option, options_of
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import from_to
from memtrade.strategies import NATIVE, STRATEGIES
from memtrade.target import ARENA
from memtrade.units import megabytes


def models() -> int:
    """List the models and their options."""
    rows = ((name, model.summary, options_of(model)) for name, model in MODELS.items())
    _show_options("model", rows)
    return 0


def strategies() -> int:
    """List the strategies and their options."""
    own = dict.fromkeys(NATIVE, "TensorFlow's own: ")
    rows = (
        (name, own.get(name, "") + strategy.summary, options_of(strategy.options))
        for name, strategy in STRATEGIES.items()
    )
    _show_options("strategy", rows)
    return 0


def devices() -> int:
    """List the devices of this machine, and the profiles of others, to plan and predict for."""
    free, limit = host.free_memory_bytes() >> 20, default_limit_bytes() >> 20
    what = f"TensorFlow's GPU allocator on the CPU; {free:,} MiB of this machine's memory are free"
    rows = [(ARENA, what, f"{limit:,}")]
    for gpu in host.gpus():
        known = "unknown" if gpu.memory_bytes is None else f"{gpu.memory_bytes >> 20:,} MiB"
        rows.append((f"gpu:{gpu.index}", f"{gpu.name}, {known}", NONE))
    for name in sorted({*device_names()} - {ARENA}):
        profile = load_device(name)
        what = f"profile: {re.split('[:;(]', profile.source)[0].strip()}"
        rows.append((name, what, f"{profile.memory_bytes >> 20:,}"))
    columns = ("device", "what it is", "limit unless told MiB")
    show([Sheet(title="Devices", columns=columns, words=2, rows=tuple(rows))])
    return 0


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
    learned = [(where, known) for _, where, known in cache.all_files()]
    if learned:
        show([_files(learned, here)])
    else:
        console.print(f"nothing is learned yet in {cache.folder()}")
    console.print()
    console.print(f"shipped, {CPU}: {shipped(CPU).source}")
    console.print(f"shipped, whose buffer a kernel takes: {reuse().source}")
    if kernels:
        console.print()
        show([_kernels(cache.FactsFile(here).read().table)])
    return 0


def _files(learned: Sequence[tuple[Surroundings, cache.CachedFacts]], here: Surroundings) -> Sheet:
    def environment(where: Surroundings, known: cache.CachedFacts) -> str:
        ran = ("on" if known.rates.onednn else "off") if known.rates else NONE
        limited = f", at most {where.instructions}" if where.instructions else ""
        return f"{ran} (environment: {where.onednn or 'unset'}{limited})"

    return Sheet.of(
        learned,
        [
            ("device", lambda it: it[0].device + (" (here, now)" if it[0] == here else "")),
            ("cpu", lambda it: it[0].cpu),
            ("TensorFlow", lambda it: it[0].tensorflow),
            ("oneDNN", lambda it: environment(*it)),
            ("of them", lambda it: _sources(it[1].table)),
            ("days", lambda it: _days(it[1].table)),
            ("threads", lambda it: str(it[0].threads)),
            ("kernels", lambda it: f"{len(it[1].table):,}"),
        ],
        title=f"learned, in {cache.folder()}",
        words=6,
    )


def _sources(table: Mapping[str, Learned]) -> str:
    """How many were asked, fitted and refused, and how many beside a busy machine."""
    counted = Counter(each.source.split(" ", 1)[0].rstrip(":") for each in table.values())
    counted["timed on a busy machine"] = sum(each.disturbed for each in table.values())
    return ", ".join(f"{number:,} {what}" for what, number in counted.items() if number)


def _days(table: Mapping[str, Learned]) -> str:
    return from_to(sorted(each.on for each in table.values())) if table else NONE


def _kernels(known: Mapping[str, Learned]) -> Sheet:
    def requested(each: Learned, *, scratch: bool) -> str:
        return megabytes(most_bytes(size for size, slot in each.requests if (slot < 0) is scratch))

    return Sheet.of(
        sorted(known.values(), key=lambda each: each.kernel),
        [
            ("kernel", lambda it: it.kernel),
            ("source", lambda it: it.source + (", on a busy machine" if it.disturbed else "")),
            ("day", lambda it: it.on),
            ("outputs MB", lambda it: requested(it, scratch=False)),
            ("scratch MB", lambda it: requested(it, scratch=True)),
            ("margin MB", lambda it: megabytes(it.margin_bytes) if it.margin_bytes else ""),
            ("ms", lambda it: cell(lambda seconds: f"{seconds * 1e3:.3f}", it.seconds)),
        ],
        title="Kernels known on this machine as it is now",
        words=3,
    )


def _show_options(what: str, rows: Iterable[tuple[str, str, Sequence[Option]]]) -> None:
    """Prints names, each with a summary and its options."""
    table = Table()
    for name in (what, "option", "type", "default", "what it says"):
        table.add_column(name, overflow="fold")
    for name, summary, options in rows:
        table.add_row(name, "", "", "", summary, style="bold", end_section=not options)
        for each in options:
            doc = each.doc + (f" ({', '.join(map(str, each.choices))})" if each.choices else "")
            default = str(each.default)
            default = default.lower() if each.type == "bool" else default or NONE
            table.add_row("", each.name, each.type, default, doc, end_section=each is options[-1])
    stdout().print(table)
