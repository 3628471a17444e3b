"""`memtrade verify`: is the rewritten step still the same step?"""

from collections.abc import Callable, Iterable
from pathlib import Path

from memtrade.commands.progress import reporting, watched
from memtrade.commands.screen import show, show_json
from memtrade.comparison import Verified
from memtrade.measure.flags import Flag, StepFlags, Verbose, make_specs
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import Outcome
from memtrade.models import make_model
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import number, status_text

# Differing variables that the table names; `--json` has them all.
_NAMES_SHOWN = 5


def verify(
    *,
    step: StepFlags = StepFlags(),
    steps: int = 3,
    plan: Path | None = None,
    json: Flag = False,
    verbose: Verbose = False,
) -> int:
    """Check that strategies compute what the original step computes.

    The original and the rewritten step run from the same variables on the same batch; the loss and
    every variable are compared, moving averages and optimizer slots included: on the CPU to the
    bit, else by the share of its update by which a variable is off. The exit status is 1 where
    anything differs, is not a number, or could not be compared. Unless --strategy is given, it is
    original,checkpoints,lms,ome.

    Parameters
    ----------
    steps
        How many steps to compare.
    plan
        A plan saved by `memtrade plan --output`, in place of --strategy.
    json
        Print the comparisons to stdout as JSON, and no table.
    """
    specs = make_specs(step, task="verify", names=step.strategy.names(), steps=steps, plan=plan)
    outcomes: list[Outcome] = []
    with reporting() as reporter:
        for position, spec in enumerate(specs, start=1):
            reporter.trial(position, len(specs), spec.strategy)
            outcome = watched(spec, reporter, timeout_seconds=step.device.timeout, verbose=verbose)
            outcomes.append(outcome)
            reporter.ended(verdict(outcome))
    if json:
        show_json(
            [
                {
                    "strategy": spec.strategy,
                    "status": outcome.status,
                    "reason": outcome.reason,
                    "spec": spec,
                    "verified": outcome.verified,
                }
                for spec, outcome in zip(specs, outcomes, strict=True)
            ]
        )
    else:
        show([_sheet(specs, outcomes)])
    return 0 if all(o.verified is not None and o.verified.equal for o in outcomes) else 1


def verdict(outcome: Outcome) -> str:
    """ "equal", "differs", or why there is nothing to compare."""
    if outcome.status != "ok" or outcome.verified is None:
        return f"{status_text(outcome.status)}: {outcome.reason}"
    return "equal" if outcome.verified.equal else "differs"


def differing(found: Verified) -> list[str]:
    """What differs, in words, the first few by name."""
    named = _few(
        f"{each.name} {each.why or f'by {number(each.of_update)} of the update'}"
        for each in found.differing
    )
    if found.rounding:
        named.append(f"rounding alone moves {', '.join(_few(found.rounding))}")
    if found.itself:
        named.append(f"run again, the original differs from itself by {number(found.itself)}")
    return named


def _few(words: Iterable[str]) -> list[str]:
    """The first, and how many more there are."""
    every = list(words)
    more = len(every) - _NAMES_SHOWN
    return [*every[:_NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _sheet(specs: list[TrialSpec], outcomes: list[Outcome]) -> Sheet:
    options = specs[0].model_options
    step = f"{make_model(specs[0].model, options).name}, batch {options['batch_size']}"

    def found(text: Callable[[Verified], str]) -> Callable[[tuple[TrialSpec, Outcome]], str]:
        return lambda pair: cell(text, pair[1].verified)

    return Sheet.of(
        list(zip(specs, outcomes, strict=True)),
        [
            ("strategy", lambda pair: pair[0].strategy),
            ("verdict", lambda pair: verdict(pair[1])),
            ("what differs", found(lambda it: ", ".join(differing(it)) or NONE)),
            ("max difference", found(lambda it: number(it.max_difference))),
            ("of the update", found(lambda it: number(it.of_update))),
            (
                "tolerance",
                found(lambda it: f"{it.tolerance:g}" if it.tolerance else "0 (to the bit)"),
            ),
            ("steps", found(lambda it: str(it.steps))),
            ("variables", found(lambda it: str(it.variables))),
        ],
        title=f"Compared with the original: {step}",
        words=3,
        weak=lambda pair: pair[1].verified is None or not pair[1].verified.equal,
    )
