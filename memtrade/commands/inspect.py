"""`memtrade inspect`: what is in a step that decides how it can be planned."""

import msgspec

from memtrade.commands.progress import ignore, log, reporting
from memtrade.commands.screen import show, show_json
from memtrade.findings import Finding, row
from memtrade.measure.flags import DeviceFlags, Flag, ModelFlags, StepFlags, Verbose, make_specs
from memtrade.measure.trial import told_by_child
from memtrade.results.sheets import Sheet
from memtrade.results.words import step_text


def inspect(
    *,
    model: ModelFlags = ModelFlags(),
    device: DeviceFlags = DeviceFlags(),
    json: Flag = False,
    verbose: Verbose = False,
) -> int:
    """Show what is in a training step, and what follows from it for plans.

    Loops and branches, tensors that nothing sizes, random numbers, several devices, and what
    cannot be rewritten: calls of Python, in-place ops. Nothing is planned or run. The
    exit status is 1 for a step that cannot be rewritten.

    Parameters
    ----------
    json
        Print the findings to stdout as JSON, and no table.
    """
    specs = make_specs(StepFlags(model=model, device=device), task="inspect", names=["original"])
    with reporting() as reporter:
        reporter.trial(1, 1, specs[0].model)
        told = told_by_child(specs[0], device.timeout, reporter.event, log if verbose else ignore)
    found = msgspec.json.decode(told, type=list[Finding])
    if json:
        show_json(found)
    else:
        sheet = Sheet(
            title=f"What is in {step_text(specs[0])}",
            columns=("what", "how many", "the first", "what follows"),
            words=4,
            rows=tuple(map(row, found)),
            weak=frozenset(i for i, each in enumerate(found) if each.refused),
        )
        show([sheet])
    return 1 if any(each.refused for each in found) else 0
