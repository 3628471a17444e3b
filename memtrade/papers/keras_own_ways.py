"""TensorFlow's own ways to save memory beside ours, on Keras models: is it worth it, is it equal?

    memtrade sweep sweeps/own_ways.toml --results results/own_ways
    python -m memtrade.papers.keras_own_ways verify results/own_ways
    python -m memtrade.papers.keras_own_ways table results/own_ways

`verify` compares each strategy of the records with the original, as `memtrade verify` does, on
smaller images: equality does not depend on their size. It adds what is not there yet to
results/keras/own_ways_verified.csv. `table` writes results/keras/own_ways.csv and .md. Figures
are the records'; nothing is measured here.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd

from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, load_records, options_text, unusual_strategy_options
from memtrade.measure.trial import Outcome, run_child
from memtrade.models import make_model
from memtrade.papers.pages import save_csv, save_page
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import number, ratio, seconds, shortened, status_text, step_text
from memtrade.strategies import NATIVE, STRATEGIES
from memtrade.units import megabytes

FOLDER = Path("results/keras")
VERIFIED = FOLDER / "own_ways_verified.csv"

# For the comparison of values. InceptionResNetV2 takes no smaller images than 75 pixels.
SMALL = {"image_size": 75, "batch_size": 4, "num_classes": 10}
STEPS = 2
TIMEOUT_SECONDS = 300.0

# What `ome` is held against: at most this share of the original's peak, in at most so many times
# its step time, with a smaller peak than any of TensorFlow's own ways that compute the same.
MOST_PEAK, MOST_TIME = 0.60, 1.40
MOST_LETTERS = 140  # of a note

Key = tuple[str, str, str]

ABOUT = ("model", "strategy", "options")
VERDICT = ("verdict", "max_difference", "tolerance", "differing", "variables", "reason")


def key_of(spec: TrialSpec) -> Key:
    """What is compared once: the model and the strategy, without a budget."""
    options = {k: v for k, v in unusual_strategy_options(spec).items() if k != "budget"}
    return make_model(spec.model, spec.model_options).name, spec.strategy, options_text(options)


# --- verify -------------------------------------------------------------------------------------


def small(spec: TrialSpec) -> TrialSpec:
    """The same comparison on a step that is quick to run.

    A budget is one for the larger step: without it, a strategy makes its smallest plan.
    """
    options = dict(spec.strategy_options)
    if options.get("budget"):
        options |= {"budget": "", "minimize": "memory"}
    return msgspec.structs.replace(
        spec,
        task="verify",
        model_options=spec.model_options | SMALL,
        strategy_options=options,
        memory_limit_bytes=default_limit_bytes() >> 20 << 20,
        steps=STEPS,
    )


def verify(records: Sequence[Record]) -> None:
    """Appends a row for each comparison that has none yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = verified()
    specs = {key_of(record.spec): record.spec for record in records}
    with VERIFIED.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow((*ABOUT, *VERDICT))
        for key, spec in specs.items():
            if key in known or spec.strategy == "original":
                continue
            outcome = run_child(small(spec), timeout_seconds=TIMEOUT_SECONDS)
            writer.writerow((*key, *verdict(outcome)))
            file.flush()
            print(*key, *verdict(outcome), file=sys.stderr)


def verdict(outcome: Outcome) -> tuple[str, ...]:
    found = outcome.verified
    if found is None:
        reason = " ".join(outcome.reason.split())
        return (outcome.status, "", "", "", "", reason)
    return (
        "equal" if found.equal else "differs",
        number(found.max_difference),
        f"{found.tolerance:g}",
        str(len(found.differing)),
        str(found.variables),
        "",
    )


def verified() -> dict[Key, dict[str, str]]:
    """The rows of the comparisons' file, if there is one, by what they compare."""
    if not VERIFIED.exists():
        return {}
    with VERIFIED.open(newline="") as file:
        return {(r["model"], r["strategy"], r["options"]): r for r in csv.DictReader(file)}


# --- table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One strategy on one step: what it comes to beside the original.

    Attributes:
        relative_peak, relative_time: to the original of the same step; None where one of them did
            not run.
        same: whether it computes what the original does; None if that is not known.
    """

    record: Record
    relative_peak: float | None
    relative_time: float | None
    same: bool | None
    said: str

    @property
    def label(self) -> str:
        options = options_text(unusual_strategy_options(self.record.spec))
        return f"{self.record.spec.strategy} {options}".strip()

    @property
    def peak_bytes(self) -> int | None:
        return None if self.record.measured is None else self.record.measured.peak_bytes


def ways(records: Sequence[Record], checks: Mapping[Key, Mapping[str, str]]) -> list[Way]:
    """Of one step, in the order of the registry."""
    originals = [r.measured for r in records if r.spec.strategy == "original"]
    original = originals[-1] if originals else None
    order = list(STRATEGIES)
    found = []
    for record in sorted(records, key=lambda r: order.index(r.spec.strategy)):
        measured = record.measured
        peak = time = None
        if measured is not None and original is not None:
            peak = measured.peak_bytes / original.peak_bytes
            time = measured.median_seconds / original.median_seconds
        same, said = sameness(record, checks.get(key_of(record.spec)))
        found.append(Way(record, peak, time, same, said))
    return found


def sameness(record: Record, check: Mapping[str, str] | None) -> tuple[bool | None, str]:
    """Whether it is the same step, and in words."""
    if record.spec.strategy == "original":
        return True, NONE
    if check is None or check["verdict"] not in ("equal", "differs"):
        return None, NONE
    if check["verdict"] == "differs":
        return False, (
            f"no: {check['differing']} of {check['variables']} variables differ, "
            f"by up to {check['max_difference']}"
        )
    if float(check["max_difference"]) == 0.0:
        return True, "to the bit"
    return True, f"within {check['tolerance']}"


def sheet(found: Sequence[Way]) -> Sheet:
    """The table of one step, with the answer to the question that it is there for."""

    def why(way: Way) -> str:
        record = way.record
        return "" if record.measured else f"{status_text(record.status)}: {record.reason}"

    return Sheet.of(
        found,
        [
            ("strategy", lambda it: it.label),
            ("peak MB", lambda it: cell(megabytes, it.peak_bytes)),
            ("of original", lambda it: ratio(it.relative_peak)),
            ("step s", lambda it: cell(lambda m: seconds(m.median_seconds), it.record.measured)),
            ("of original's time", lambda it: ratio(it.relative_time)),
            ("same step", lambda it: it.said),
            ("note", lambda it: shortened(why(it), MOST_LETTERS) or NONE),
        ],
        title=step_text(found[0].record.spec),
        weak=lambda it: it.record.measured is None,
        notes=(answer(found),),
    )


def best_own(found: Sequence[Way], *, same: bool) -> Way | None:
    """The smallest peak among TensorFlow's own ways: those that compute the same step, or all."""
    own = [
        way
        for way in found
        if way.record.spec.strategy in NATIVE
        and way.peak_bytes is not None
        and (way.same or not same)
    ]
    return min(own, key=lambda way: way.peak_bytes or 0, default=None)


def answer(found: Sequence[Way]) -> str:
    """How `ome` stands to the original and to the best of TensorFlow's own ways."""
    ome = next((way for way in found if way.record.spec.strategy == "ome"), None)
    if ome is None or ome.relative_peak is None or ome.relative_time is None:
        return "ome has no figures here"
    assert ome.peak_bytes is not None
    peak_met, time_met = ome.relative_peak <= MOST_PEAK, ome.relative_time <= MOST_TIME
    said = (
        f"ome: {ome.relative_peak:.0%} of the original's peak (at most {MOST_PEAK:.0%}: "
        f"{yes(peak_met)}) in {ome.relative_time:.2f} times its time (at most {MOST_TIME:.2f}: "
        f"{yes(time_met)})"
    )
    for same, which in ((True, "that computes the same"), (False, "whatever it computes")):
        own = best_own(found, same=same)
        if own is None or own.peak_bytes is None:
            said += f"; none of TensorFlow's own ways is one {which}"
            continue
        said += (
            f"; the best of TensorFlow's own ways {which}, {own.label}, peaks at "
            f"{megabytes(own.peak_bytes)} MB (ome is below: {yes(ome.peak_bytes < own.peak_bytes)})"
        )
    return said


def yes(met: bool) -> str:
    return "yes" if met else "no"


def frame(every: Sequence[Sequence[Way]]) -> pd.DataFrame:
    """All ways as data, in bytes and seconds."""
    rows = []
    for way in (way for found in every for way in found):
        record, measured = way.record, way.record.measured
        rows.append(
            {
                "step": step_text(record.spec),
                "strategy": record.spec.strategy,
                "options": options_text(unusual_strategy_options(record.spec)),
                "status": record.status,
                "peak_bytes": measured.peak_bytes if measured else None,
                "relative_peak": way.relative_peak,
                "median_seconds": measured.median_seconds if measured else None,
                "relative_time": way.relative_time,
                "same_step": way.said,
                "reason": " ".join(record.reason.split()),
                "record": record.filename,
            }
        )
    return pd.DataFrame(rows).astype({"peak_bytes": "Int64"})


def table(records: Sequence[Record], folder: str) -> None:
    checks = verified()
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(step_text(record.spec), []).append(record)
    every = [ways(group, checks) for group in groups.values()]
    FOLDER.mkdir(parents=True, exist_ok=True)
    body = "\n\n".join(sheet(found).to_markdown().strip() for found in every)
    about = {"folder": folder, "machine": records[-1].machine, "small": SMALL, "steps": STEPS}
    save_page(FOLDER / "own_ways.md", **about, body=body)
    save_csv(FOLDER / "own_ways.csv", frame(every))
    for found in every:
        print(f"{step_text(found[0].record.spec)}: {answer(found)}")


def main(words: Sequence[str]) -> int:
    match words:
        case ["verify", folder]:
            verify(load_records(Path(folder)))
        case ["table", folder]:
            table(load_records(Path(folder)), folder)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
