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
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import (
    RETIRED_OPTIONS,
    Record,
    load_records,
    options_text,
    unusual_strategy_options,
)
from memtrade.measure.trial import Outcome, run_child
from memtrade.models import make_model
from memtrade.papers.pages import save_csv, save_page
from memtrade.papers.published import lines
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

    A budget is one for the larger step: without it, a strategy makes its smallest plan. Options
    that are no more are left out.
    """
    options = {k: v for k, v in spec.strategy_options.items() if k not in RETIRED_OPTIONS}
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


def ways(records: Sequence[Record], checks: Mapping[Key, Mapping[str, str]]) -> Any:
    """Of one step, a row for each strategy in the order of the registry; in bytes and seconds, both
    also over those of the original, where both ran. `same`: whether it computes what the original
    does, None if that is not known; `same_step` says so in words."""
    order = list(STRATEGIES)
    rows = []
    for record in sorted(records, key=lambda r: order.index(r.spec.strategy)):
        spec, measured = record.spec, record.measured
        same, said = sameness(record, checks.get(key_of(spec)))
        options = options_text(unusual_strategy_options(spec))
        rows.append(
            {
                "step": step_text(spec),
                "label": f"{spec.strategy} {options}".strip(),
                "strategy": spec.strategy,
                "options": options,
                "status": record.status,
                "peak_bytes": measured and measured.peak_bytes,
                "median_seconds": measured and measured.median_seconds,
                "same": same,
                "same_step": said,
                "reason": " ".join(record.reason.split()),
                "record": record.filename,
            }
        )
    found: Any = pd.DataFrame(rows).astype({"peak_bytes": "Int64", "median_seconds": "Float64"})
    original = found[found["strategy"] == "original"].tail(1)
    for name, of in (("peak", "peak_bytes"), ("time", "median_seconds")):
        over = found[of] / (original[of].item() if len(original) else pd.NA)
        found.insert(found.columns.get_loc(of) + 1, f"relative_{name}", over)
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


def sheet(found: Any) -> Sheet:
    """The table of one step, with the answer to the question that it is there for."""

    def why(it: dict[str, Any]) -> str:
        ran = it["peak_bytes"] is not None
        return "" if ran else f"{status_text(it['status'])}: {it['reason']}"

    return Sheet.of(
        lines(found),
        [
            ("strategy", lambda it: it["label"]),
            ("peak MB", lambda it: cell(megabytes, it["peak_bytes"])),
            ("of original", lambda it: ratio(it["relative_peak"])),
            ("step s", lambda it: cell(seconds, it["median_seconds"])),
            ("of original's time", lambda it: ratio(it["relative_time"])),
            ("same step", lambda it: it["same_step"]),
            ("note", lambda it: shortened(why(it), MOST_LETTERS) or NONE),
        ],
        title=found["step"][0],
        weak=lambda it: it["peak_bytes"] is None,
        notes=(answer(found),),
    )


def best_own(found: Any, *, same: bool) -> dict[str, Any] | None:
    """The smallest peak among TensorFlow's own ways: those that compute the same step, or all."""
    own = found[found["strategy"].isin(list(NATIVE)) & found["peak_bytes"].notna()]
    own = own[own["same"].eq(True)] if same else own
    return min(lines(own), key=lambda it: it["peak_bytes"], default=None)


def answer(found: Any) -> str:
    """How `ome` stands to the original and to the best of TensorFlow's own ways."""
    ome = next((it for it in lines(found) if it["strategy"] == "ome"), None)
    if ome is None or ome["relative_peak"] is None:
        return "ome has no figures here"
    peak, time = ome["relative_peak"], ome["relative_time"]
    said = (
        f"ome: {peak:.0%} of the original's peak (at most {MOST_PEAK:.0%}: "
        f"{yes(peak <= MOST_PEAK)}) in {time:.2f} times its time (at most {MOST_TIME:.2f}: "
        f"{yes(time <= MOST_TIME)})"
    )
    for same, which in ((True, "that computes the same"), (False, "whatever it computes")):
        own = best_own(found, same=same)
        if own is None:
            said += f"; none of TensorFlow's own ways is one {which}"
            continue
        below = yes(ome["peak_bytes"] < own["peak_bytes"])
        said += (
            f"; the best of TensorFlow's own ways {which}, {own['label']}, peaks at "
            f"{megabytes(own['peak_bytes'])} MB (ome is below: {below})"
        )
    return said


def yes(met: bool) -> str:
    return "yes" if met else "no"


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
    save_csv(FOLDER / "own_ways.csv", pd.concat(every).drop(columns=["label", "same"]))
    for found in every:
        print(f"{found['step'][0]}: {answer(found)}")


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
