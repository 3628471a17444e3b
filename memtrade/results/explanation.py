"""Out of memory on one page: who asked, why it was refused, what held the rest, what would fit."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memtrade.errors import BEFORE_ANY_OP
from memtrade.explain.cause import Explanation
from memtrade.explain.remedy import NoRemedy, Remedy
from memtrade.results.layers import REST
from memtrade.results.sheets import Sheet
from memtrade.results.words import op_text
from memtrade.simulate.by_layer import LayerRow
from memtrade.units import megabytes

# Rows of what held memory; the others are added up.
_HOLDERS = 8

_SHOWN_BYTES = 50_000  # less would read 0.0 MB

_UNTOLD = (
    "not told by this text alone: it has no dump of the allocator (TF_CPP_MIN_LOG_LEVEL=0 logs one)"
)
_OWN_ORDER = " and, in the order in which TensorFlow ran it, up to a fifth more"


@dataclass(frozen=True)
class Page:
    """The explanation of one error.

    Attributes:
        remedy: None where none was sought, or the step cannot be planned.
        command: what runs the remedy, as one types it; "" where there is no such command.
        python: the same as a line of Python.
        naming: how one names the step, where only the error is known.
    """

    explanation: Explanation
    remedy: Remedy | NoRemedy | None = None
    command: str = ""
    python: str = ""
    naming: str = "--model or --target, and --batch-size"

    def to_rich(self) -> Group:
        """For a terminal. Print it with a console without markup."""
        found = self.explanation
        step = f": {found.step}" if found.step else ""
        device = f", on {found.device}" if found.device else ""
        title = Text(f"Out of memory{step}{device}", style="bold")
        parts: list[RenderableType] = [title, ""]
        facts = Table.grid(padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True, style="bold")
        facts.add_column(overflow="fold")
        why = _why(found)
        if why == _UNTOLD and not found.by_itself:
            why += f". Name the step to have it simulated, with {self.naming}"
        for name, words in (("why", why), ("who", _who(found)), ("memory", _memory(found))):
            if words:
                facts.add_row(name, words)
        parts.append(facts)
        if found.rows:
            parts += ["", _holders(found).to_rich()]
        parts += ["", Text("What fits", style="bold"), *self._ways_out()]
        return Group(*parts)

    def _ways_out(self) -> list[RenderableType]:
        found, remedy = self.explanation, self.remedy
        lines: list[RenderableType] = []
        if isinstance(remedy, Remedy):
            lines.append(_item(_costs(remedy)))
            typed = filter(None, (self.command, self.python))
            lines += [Padding(Text(each), (0, 0, 0, 4)) for each in typed]
            if not remedy.budget_bytes:
                asked = f'strategy="optimal", budget="{found.room_bytes >> 20}MiB"'
                lines.append(_item(f"{asked} searches for the fastest plan that fits"))
        elif isinstance(remedy, NoRemedy):
            floor = megabytes(remedy.floor_bytes)
            by = op_text(remedy.op) or BEFORE_ANY_OP
            lines.append(_item(f"no plan: the smallest peak found is {floor} MB, by {by}"))
        ways = _other_ways(found)
        if not found.step and found.by_itself:
            ways.append(
                "asking for less at once, such as data batch by batch: a tf.data.Dataset, or NumPy "
                "arrays in fit"
            )
        elif not found.step and found.kind != "elsewhere":
            ways.append(f"a smaller batch, or a plan: name the step, with {self.naming}")
        return [*lines, *map(_item, ways)]


def _item(words: str) -> Text:
    return Text(f"- {words}")


def _costs(remedy: Remedy) -> str:
    budget = f", budget {remedy.budget_bytes >> 20}MiB" if remedy.budget_bytes else ""
    host = f" and {megabytes(remedy.host_bytes)} MB of host memory" if remedy.host_bytes else ""
    return (
        f"{remedy.strategy}{budget}: {megabytes(remedy.peak_bytes)} MB{host}, "
        f"{remedy.relative_time:.2f} times the step's time; predicted"
    )


def _why(found: Explanation) -> str:
    needed, limit = megabytes(found.needed_bytes), megabytes(found.limit_bytes)
    takes, beside = f"the step takes {needed} MB", found.beside
    match found.kind:
        case "batch":
            own = _OWN_ORDER if found.needed_bytes <= found.limit_bytes else ""
            data = f", of which {megabytes(beside.data_bytes)} MB are data beside it"
            fits = f"; about {found.fitting_batch:,} of {found.batch_size:,} examples would fit"
            return (
                f"the batch is too large: {takes}{own}, the device has {limit} MB"
                f"{data if beside.data_bytes else ''}{fits if found.fitting_batch else ''}"
            )
        case "need" if found.needed_bytes:
            return (
                f"the step needs more than there is, whatever its batch: {needed} MB of {limit} "
                f"MB, of which {megabytes(found.fixed_bytes)} MB are weights and slots"
            )
        case "need":
            return _more_than_left(found, limit)
        case "elsewhere":
            used = f", of which {megabytes(found.in_use_bytes)} MB were in use"
            most = f"{limit} MB{used}" if found.limit_bytes else "more"
            return (
                f"something else on the device: TensorFlow may take {most}, and there was no more"
            )
        case "fragmentation":
            piece = f"{megabytes(found.requested_bytes)} MB in one piece were not"
            if found.largest_free_bytes is not None:
                piece = f"the largest piece had {megabytes(found.largest_free_bytes)} MB"
            return f"fragmentation: {megabytes(found.free_bytes)} MB were free, but {piece}"
        case "scratch":
            part = (
                f": {takes} of {limit} MB, of which kernels ask for up to "
                f"{megabytes(found.scratch_bytes)} MB beside their outputs"
            )
            return f"scratch memory of a kernel{part if found.needed_bytes else ''}"
        case "another model" | "leak":
            return _beside_the_step(found, takes)
    return (
        f"nothing that the step does: it takes {needed} MB of {limit} MB. Something else in the "
        "process, or on the device, holds memory"
        if found.needed_bytes
        else _UNTOLD
    )


def _beside_the_step(found: Explanation, takes: str) -> str:
    beside = found.beside
    if found.kind == "another model":
        return (
            f"something else in the process: {takes} and fits alone, but "
            f"{megabytes(beside.variable_bytes)} MB are variables that it does not use"
            + _where(found)
        )
    return (
        f"tensors that stay between steps: {takes} and fits alone, but Python holds "
        f"{beside.tensors:,} tensors with {megabytes(beside.tensor_bytes)} MB" + _where(found)
    )


def _more_than_left(found: Explanation, limit: str) -> str:
    beside = found.beside
    said = f"need: more was asked for than the device's {limit} MB have left"
    if beside.tensors:
        size = megabytes(beside.tensor_bytes)
        return f"{said}. Python holds {beside.tensors:,} tensors with {size} MB{_where(found)}"
    batch = ". Whether a smaller batch would fit, only the step tells"
    return said + ("" if found.by_itself else batch)


def _where(found: Explanation) -> str:
    return f" ({found.beside.where})" if found.beside.where else ""


def _who(found: Explanation) -> str:
    asked = "stands at the peak" if found.needed_bytes else "was refused memory"
    if found.requested_bytes:
        what = " of scratch" if found.is_scratch else ""
        shape = "×".join(map(str, () if found.is_scratch else found.shape or ()))
        asked = f"asked for {megabytes(found.requested_bytes)} MB{what}"
        asked += f", {shape}" if shape else ""
    if found.by_itself:
        who = f"{found.op_type}, which the program runs by itself and not in a step,"
    elif found.op:
        who = f"{found.op_type} {op_text(found.op)}".strip()
    elif found.needed_bytes:
        fits = found.needed_bytes <= found.limit_bytes
        alone = "" if fits else ". Its variables and its batch alone do not fit"
        return f"nobody of the step: it had not begun{alone}"
    elif found.requested_bytes:
        who = "an op that the text does not name"
    else:
        return f"what {found.source} runs" if found.source else ""
    place = found.layer or found.source
    if found.source not in ("", place):
        place += f" ({found.source})"
    told = f"{place}: {who} {asked}" if place else f"{who} {asked}"
    if found.stranger:
        told += f". The error names {found.stranger}, which this step does not have"
    return told


def _memory(found: Explanation) -> str:
    if not found.limit_bytes:
        return ""
    in_use, limit = megabytes(found.in_use_bytes), megabytes(found.limit_bytes)
    free = f"in use of {limit} MB, {megabytes(found.free_bytes)} MB free"
    if found.largest_free_bytes is None:
        return f"up to {in_use} MB {free}; by {found.counted_by}"
    largest = megabytes(found.largest_free_bytes)
    return f"{in_use} MB {free}, the largest piece {largest} MB; by {found.counted_by}"


def _holders(found: Explanation) -> Sheet:
    """What was held when the request came, by layer."""
    rows = [
        (row.name or REST, megabytes(row.peak_bytes), _parts_of(row))
        for row in found.rows[:_HOLDERS]
    ]
    rest = found.rows[_HOLDERS:]
    if rest:
        size = sum(row.peak_bytes for row in rest)
        rows.append((f"{len(rest)} more", megabytes(size), ""))
    if found.beside.data_bytes >= _SHOWN_BYTES:
        rows.append(("data, batches made ahead", megabytes(found.beside.data_bytes), ""))
    if found.beside.size_bytes >= _SHOWN_BYTES:
        rows.append(("beside the step", megabytes(found.beside.size_bytes), found.beside.where))
    held = "What the step holds at its peak" if found.by_itself else "What held memory then"
    by = "line" if found.by == "source" else found.by
    return Sheet(
        title=f"{held}, by {by}: {megabytes(found.held_bytes)} MB, simulated",
        columns=(by, "MB", "of which"),
        rows=tuple(rows),
    )


def _parts_of(row: LayerRow) -> str:
    parts = (("weights", row.weight_bytes), ("slots", row.slot_bytes))
    return ", ".join(f"{megabytes(size)} {name}" for name, size in parts if size >= _SHOWN_BYTES)


def _other_ways(found: Explanation) -> list[str]:
    ways = []
    if found.kind == "batch" and found.fitting_batch:
        ways.append(f"a batch of about {found.fitting_batch:,}")
    if found.kind == "fragmentation" and found.device.upper().startswith("GPU"):
        ways.append("TF_GPU_ALLOCATOR=cuda_malloc_async, an allocator that joins free pieces")
    if found.kind == "elsewhere":
        ways.append("ending what else runs there: nvidia-smi lists the processes on a card")
    if found.kind == "another model" and found.beside.where:
        ways.append(
            "giving back the other model's memory first: memtrade.keras.release(model); to delete "
            "it is not enough once it was trained"
        )
    elif found.kind == "another model":
        ways.append("deleting those variables first")
    if found.kind == "unknown" and found.fits_alone:
        ways.append(
            "where a model was trained here and deleted: memtrade.keras.release(model) before "
            "that, else its memory stays; or a process for each"
        )
    if found.kind == "leak" or (found.kind == "fragmentation" and found.fits_alone):
        ways.append("keeping numbers in place of tensors: float(loss), not loss, in lists and logs")
    return ways
