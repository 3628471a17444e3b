"""`memtrade compare`: what changed from one set of results to another. Only reads."""

from pathlib import Path

from memtrade.commands.progress import say
from memtrade.commands.reading import read_records
from memtrade.commands.screen import Form, show
from memtrade.files import shown_apart
from memtrade.measure.flags import Flag
from memtrade.results.compare import TOLERANCE, changes_sheet, compare_results, unlike_notes


def compare(
    before: Path,
    after: Path,
    /,
    *,
    tolerance: float = TOLERANCE,
    across_machines: Flag = False,
    all: Flag = False,
    format: Form = "terminal",
) -> int:
    """Compare two sets of results: which trials changed, by how much, beyond noise.

    Trials are the same if all but the versions is. Peaks are compared to the byte (in dataflow
    order, beyond their spread from step to step), step times beyond three standard deviations of a
    step or the tolerance, whichever is more. A warning names what else differs: the CPU's features,
    threads, oneDNN, memtrade's source. The exit status is 1 where anything got worse.

    Parameters
    ----------
    before
        A folder of records.
    after
        Another one.
    tolerance
        The least relative difference of step times that counts: 0.05 is 5 %.
    across_machines
        Compare records of unlike machines: their peaks; times are shown, and not judged.
    all
        Show the trials that did not change, too.
    format
        csv has one row per trial and quantity, in bytes and seconds.
    """
    changes = compare_results(
        read_records(before),
        read_records(after),
        tolerance=tolerance,
        across_machines=across_machines,
    )
    if format == "csv":
        for note in unlike_notes(changes):  # which the tables have below them
            say(note)
    shown = shown_apart(before, after)
    sheet = changes_sheet(changes, before=shown[0], after=shown[1], unchanged=all)
    show([sheet], format)
    return 1 if changes.worse else 0
