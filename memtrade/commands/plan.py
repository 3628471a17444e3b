"""What is in a step, `memtrade inspect`, and what is kept, recomputed and swapped of it, and why:
`memtrade plan`. Nothing runs: a child traces the step, this process plans."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import msgspec

from memtrade.commands import progress
from memtrade.commands.profiles import foresee
from memtrade.commands.progress import ignore, log, reporting
from memtrade.commands.reading import check_folder, write_output
from memtrade.commands.screen import show, show_json, stdout
from memtrade.errors import MemtradeError
from memtrade.findings import Finding, row
from memtrade.graph import StepGraph
from memtrade.measure.flags import DeviceFlags, Flag, ModelFlags, StepFlags, Verbose, make_specs
from memtrade.measure.protocol import PlanSummary
from memtrade.measure.trial import told_by_child
from memtrade.plan import Decision, Plan
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.words import step_text
from memtrade.simulate.by_layer import By, owners
from memtrade.strategies import PLANNED, find_planned
from memtrade.strategies.base import clock_of
from memtrade.strategies.saving import saves_nothing
from memtrade.units import megabytes

DEFAULT = ("ome",)
DECISIONS: dict[Decision, str] = {"keep": "kept", "recompute": "recomputed", "swap": "swapped"}


def plan(
    *,
    step: StepFlags = StepFlags(),
    by: Literal["tensor", By] = "tensor",
    output: Path | None = None,
    json: Flag = False,
    verbose: Verbose = False,
) -> int:
    """Show what a strategy keeps, recomputes and swaps, and why, without running it.

    The plan is made for a device that is here, or for one that one does not have. The exit status
    is 3 where no plan reaches the budget. Unless --strategy is given, it is ome.

    Parameters
    ----------
    by
        A row of decisions is a tensor, with the reason; a layer; or a source, the line of the
        program.
    output
        Save the plan to this file, for `memtrade run --plan` and `memtrade verify --plan`.
    json
        Print the plans to stdout as JSON, every tensor of them, and no table.
    """
    names = [find_planned(name).name for name in step.strategy.names(DEFAULT, everything=PLANNED)]
    if json and by != "tensor":
        raise MemtradeError(f"--json has every tensor of a plan: leave --by {by} out")
    if output is not None:
        if len(names) > 1:
            raise MemtradeError(
                f"--output saves one plan: choose one of the strategies {', '.join(names)}"
            )
        check_folder(output)
    foresight = foresee(step, default=DEFAULT, verbose=verbose)
    plans: list[Plan] = []
    # Elsewhere there are no lines: whoever sets up Python's logging reads what strategies log.
    with reporting() if progress.on_terminal() else nullcontext() as reporter:
        for position, spec in enumerate(foresight.specs, start=1):
            if reporter is not None:
                reporter.trial(position, len(foresight.specs), spec.strategy, phase="plan")
            plans.append(foresight.plan(spec))
    if output is not None:
        write_output(output, msgspec.json.encode(plans[0]))
    if json:
        show_json(plans)
        return 0
    clock = clock_of(foresight.graph, foresight.target)
    for made in plans:
        _show(made, foresight.graph, saves_nothing(made, clock), by)
    return 0


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


def _show(plan: Plan, graph: StepGraph, verdict: str, by: Literal["tensor", By]) -> None:
    """The totals, what the strategy remarks and whether it saves, then each decision with its
    tensors, layers or lines in forward order."""
    summary = PlanSummary.of(plan, graph)
    totals = Sheet(
        title=f"{plan.strategy} on {graph.name}",
        columns=("decision", "activations", "MB"),
        rows=tuple(
            (word, f"{getattr(summary, word):,}", megabytes(getattr(summary, f"{word}_bytes")))
            for word in DECISIONS.values()
        ),
    )
    show([totals])
    console = stdout()
    again = f"{summary.clones:,} of them {'runs' if summary.clones == 1 else 'run'} an op again"
    console.print(f"{summary.actions:,} actions, {again}, for {plan.target}")
    for remark in filter(None, (*plan.remarks, verdict)):
        console.print(remark)
    if plan.gap is not None:
        console.print(f"proven gap: {100 * plan.gap:.1f}% (no plan in the model is better by more)")
    console.print()
    show([_fates(plan, graph) if by == "tensor" else _owned(plan, graph, by)])


def _fates(plan: Plan, graph: StepGraph) -> Sheet:
    """Each decision with its tensors."""
    order, tensors = list(DECISIONS), graph.tensors
    return Sheet.of(
        sorted(plan.fates, key=lambda fate: order.index(fate.decision)),
        [
            ("decision", lambda fate: DECISIONS[fate.decision]),
            ("tensor", lambda fate: graph.label(fate.tensor)),
            ("shape", lambda f: "×".join(map(str, tensors[f.tensor].shape or ())) or "scalar"),
            ("why", lambda fate: fate.reason),
            ("MB", lambda fate: megabytes(tensors[fate.tensor].size_bytes)),
        ],
        title="Decisions",
        words=4,
    )


def _owned(plan: Plan, graph: StepGraph, by: By) -> Sheet:
    """What is decided of each layer's, or each line's, activations, in MB."""
    names = owners(graph, by)
    sums: dict[str, Counter[Decision]] = {}
    for fate in sorted(plan.fates, key=lambda fate: graph.tensors[fate.tensor].op):
        tensor = graph.tensors[fate.tensor]
        own = sums.setdefault(names[tensor.op], Counter())
        own[fate.decision] += tensor.size_bytes
    return Sheet(
        title=f"Decisions by {'line' if by == 'source' else by}, in MB",
        columns=("line" if by == "source" else by, *DECISIONS.values()),
        rows=tuple(
            (name or NONE, *(megabytes(own[each]) if own[each] else NONE for each in DECISIONS))
            for name, own in sums.items()
        ),
    )
