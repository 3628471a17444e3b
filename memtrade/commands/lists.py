"""`memtrade models`, `strategies` and `devices`: what there is to choose from."""

import re
from collections.abc import Sequence

from rich.table import Table

from memtrade.commands.screen import show, stdout
from memtrade.devices import device_names, load_device
from memtrade.measure import host
from memtrade.measure.environment import default_limit_bytes
from memtrade.models import MODELS, Option, options_of
from memtrade.results.sheets import NONE, Sheet
from memtrade.strategies import NATIVE, STRATEGIES
from memtrade.target import ARENA


def models() -> int:
    """List the models and their options."""
    table = _options_table("model")
    for name, model in MODELS.items():
        _add(table, name, model.summary, options_of(model))
    stdout().print(table)
    return 0


def strategies() -> int:
    """List the strategies and their options."""
    table = _options_table("strategy")
    for name, strategy in STRATEGIES.items():
        kind = "TensorFlow's own: " if name in NATIVE else ""
        _add(table, name, kind + strategy.summary, options_of(strategy.options))
    stdout().print(table)
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


def _options_table(what: str) -> Table:
    table = Table()
    for name in (what, "option", "type", "default", "what it says"):
        table.add_column(name, overflow="fold")
    return table


def _add(table: Table, name: str, summary: str, options: Sequence[Option]) -> None:
    table.add_row(name, "", "", "", summary, style="bold", end_section=not options)
    for each in options:
        doc = each.doc
        if each.choices:
            doc += f" ({', '.join(map(str, each.choices))})"
        default = str(each.default).lower() if each.type == "bool" else str(each.default) or NONE
        table.add_row("", each.name, each.type, default, doc, end_section=each is options[-1])
