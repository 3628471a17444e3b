"""What is in a step that decides how it can be planned, and what follows from each.

    traced step ──► findings ──► refused in one line, or planned with these limits

`memtrade.inspect` returns them and `memtrade inspect` prints them, before anything is planned.
"""

from collections.abc import Callable

import msgspec

from memtrade.graph import BOUND, WATCHED, Op, StepGraph
from memtrade.iterations import places_of
from memtrade.op_types import (
    BRANCH_TYPES,
    CALL_TYPES,
    DRAWING_TYPES,
    HARMLESS_TYPES,
    ITERATING_TYPES,
    LOOP_TYPES,
    PYTHON_TYPES,
)
from memtrade.units import megabytes


class Finding(msgspec.Struct, frozen=True):
    """Something that is in a step.

    Attributes:
        what: in a word or two ("loops").
        count: how many there are.
        where: the name of the first, TensorFlow's.
        follows: what that means for plans.
        refused: whether the step cannot be rewritten because of it.
    """

    what: str
    count: int
    where: str
    follows: str
    refused: bool = False


def of_graph(graph: StepGraph) -> list[Finding]:
    """What a traced step's graph shows. First its loss, and what there is to save."""
    loss, kept = graph.label(graph.loss), graph.activations
    size = f"{megabytes(graph.bytes_of(kept))} MB"
    follows = f"{size} are kept for the gradients: what plans can save from"
    found = [
        Finding("loss", 1, loss, "the gradients descend from it; loss=... names another"),
        Finding("activations", len(kept), graph.label(kept[0]) if kept else "", follows),
    ]
    found += [
        Finding(what, len(ops), ops[0].name, follows)
        for what, is_meant, follows in _IN_OPS
        if (ops := [op for op in graph.ops if is_meant(op)])
    ]
    if loops := {place.loop for places in places_of(graph).values() for place in places[:1]}:
        follows = "each iteration is planned; as the step comes, several run at once, and its peak "
        follows += "is foreseen about"
        found.append(Finding("unrolled loops", len(loops), min(loops), follows))
    if unsized := graph.data.unsized:
        follows = "nothing tells their size: predictions are lower bounds, and budgets are refused"
        found.append(Finding("unsized tensors", len(unsized), unsized[0], follows))
    for how, what, follows in _SIZED:
        if sized := graph.sized(how):
            found.append(Finding(what, len(sized), graph.label(sized[0]), follows))
    return found


def row(finding: Finding) -> tuple[str, str, str, str]:
    """What, how many, where the first is, and what follows, as text."""
    follows = f"refused: {finding.follows}" if finding.refused else finding.follows
    return finding.what, f"{finding.count:,}", finding.where, follows


_SIZED = (
    (BOUND, "bounded tensors", "their size is bounded from above, so predictions may be too high"),
    (
        WATCHED,
        "watched tensors",
        "their size is what it is for the example batch: a batch with more of them takes more",
    ),
)

_IN_OPS: tuple[tuple[str, Callable[[Op], bool], str], ...] = (
    (
        "loops",
        lambda op: op.type in LOOP_TYPES,
        "one that stays an op is sized by its trip count, and not recomputed in parts",
    ),
    (
        "branches",
        lambda op: op.type in BRANCH_TYPES,
        "each is an op like any other, sized by its larger branch: peaks are about that",
    ),
    (
        "batches of a data set",
        lambda op: op.type in ITERATING_TYPES,
        "it has others ready, which lie on the host: there, peaks are about that",
    ),
    (
        "functions kept whole",
        lambda op: op.type in CALL_TYPES,
        "XLA compiles them, or they ask to stay: each is an op like any other",
    ),
    (
        "random ops with a state",
        lambda op: op.stateful and op.type in DRAWING_TYPES,
        "they run once, and what they draw is kept or swapped",
    ),
    (
        "other effects",
        lambda op: (
            op.stateful
            and bool(op.outputs)
            and op.type not in LOOP_TYPES | BRANCH_TYPES | CALL_TYPES | DRAWING_TYPES
            and op.type not in HARMLESS_TYPES | PYTHON_TYPES
        ),
        "they run once, where the step has them",
    ),
)
