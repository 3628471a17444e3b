"""How views write things: strategies, steps, devices, statuses, seconds and shares."""

import re
from collections.abc import Iterable, Sequence

from memtrade.measure.flags import OWN_OPTIMIZER
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import options_text, unusual_model_options, unusual_strategy_options
from memtrade.models import MODELS, make_model, options_of
from memtrade.results.sheets import NONE, cell
from memtrade.strategies import STRATEGIES
from memtrade.units import mebibytes

# Stands behind a time that was measured beside other trials, and behind a ratio to or of such.
BESIDE = "†"

# What TensorFlow puts before the names of what it calls.
_CALLS = re.compile(r"\b(Stateful)?PartitionedCall(_\d+)?/")

# Below a table in which a plan has "31 + 2" swapped.
WAITING = "+: on the host, too, while they wait at the peak: gradients, masks and the like"


def joined(*parts: str) -> str:
    """Those that say something, with commas between."""
    return ", ".join(filter(None, parts))


def op_text(name: str) -> str:
    """An op's name without the calls that it stands in.

    >>> op_text("StatefulPartitionedCall/dense_1/MatMul")
    'dense_1/MatMul'
    """
    return _CALLS.sub("", name)


def elided(name: str, most: int) -> str:
    """A name in at most so many characters: its end, which tells it from its neighbours, and where
    it begins.

    >>> elided("encoder/block_1/grouped_query_attention/query", 24)
    'encoder/…attention/query'
    """
    if len(name) <= most:
        return name
    begin = most // 3
    return f"{name[:begin]}…{name[begin + 1 - most :]}"


def strategy_label(spec: TrialSpec) -> str:
    """The strategy with what is not the default: "lms (lb=3)", "ome (dataflow)", and how ops run
    in parts: "optimal, in parts (reordered)"."""
    inside = joined(
        options_text(unusual_strategy_options(spec)),
        spec.order if spec.order != "pinned" else "",
        "saved plan" if spec.plan_path else "",
    )
    label = f"{spec.strategy} ({inside})" if inside else spec.strategy
    return f"{label}, in parts ({spec.split})" if spec.split else label


def strategy_rank(name: str) -> int:
    """The position in the registry; a saved plan's own strategy comes last."""
    return list(STRATEGIES).index(name) if name in STRATEGIES else len(STRATEGIES)


def step_text(spec: TrialSpec) -> str:
    """The step: "resnet-50, batch 32, 224 × 224 pixels, sgd", as far as it is decided."""
    batch, size = (spec.model_options.get(name) for name in ("batch_size", "image_size"))
    return joined(
        make_model(spec.model, spec.model_options).name,
        f"batch {batch}" if batch else "",
        f"{size} × {size} pixels" if size else "",
        options_text(unusual_model_options(spec)),
        optimizer_text(spec),
    )


def optimizer_text(spec: TrialSpec) -> str:
    own = spec.optimizer == OWN_OPTIMIZER
    return f"{spec.optimizer} optimizer" if own else spec.optimizer


def step_conditions(spec: TrialSpec) -> str:
    """The model's options that are not the default, without depth and batch size."""
    unusual = unusual_model_options(spec)
    defaults = {each.name: each.default for each in options_of(MODELS[spec.model])}
    size = spec.model_options.get("image_size")
    if size != defaults.get("image_size"):
        unusual = {"image_size": size} | unusual
    return options_text(unusual)


def device_label(device: str, limit_bytes: int | None) -> str:
    """The device with its limit: "arena of 7,254 MiB"."""
    return f"{device} of {mebibytes(limit_bytes)}" if limit_bytes else device


def status_text(status: str) -> str:
    return status.replace("_", " ")


def from_to(ordered: Sequence[object]) -> str:
    """The first and the last of them; one, where they are alike.

    >>> from_to([18, 34, 50]), from_to([18, 18])
    ('18 to 50', '18')
    """
    return " to ".join(dict.fromkeys(map(str, (ordered[0], ordered[-1]))))


def number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}"


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3f}"


def plural(counts: Iterable[int], what: str) -> str:
    """
    >>> plural([1], "step"), plural([3, 3], "step"), plural([5, 1], "step")
    ('1 step', '3 steps', '1 to 5 steps')
    """
    found = sorted(set(counts))
    return f"{from_to(found)} {what}{'' if found == [1] else 's'}"


def percent(share: float) -> str:
    """Signed, without the sign of the unit; what rounds to nothing is +0.00."""
    return f"{100 * share:+z.2f}"


def ratio(value: float | None) -> str:
    return cell("{:.2f}".format, value)


def shortened(text: str, letters: int) -> str:
    """In one line, of so many letters at the most."""
    words = " ".join(text.split())
    return words if len(words) <= letters else words[: letters - 1] + "…"


def beside(text: str, jobs: int) -> str:
    """The text of a time, marked if so many trials ran at a time that it compares to no other.

    >>> beside("2.32", jobs=1), beside("4.10", jobs=2), beside(NONE, jobs=2)
    ('2.32', '4.10†', '-')
    """
    return text + BESIDE if jobs > 1 and text != NONE else text


def beside_note(jobs: int) -> str:
    """What the mark says, where up to so many trials ran at a time."""
    return (
        f"{BESIDE} measured beside other trials, up to {jobs} at a time, which slow each other "
        "down: compare no times with it; memtrade sweep --retry parallel measures it alone"
    )
