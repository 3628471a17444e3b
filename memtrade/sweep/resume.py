"""Which trials of a sweep still have to run: those without a record, and failed ones by choice."""

from collections.abc import Iterable, Mapping

from memtrade.errors import UnknownNameError
from memtrade.measure.records import Record
from memtrade.sweep.grid import Trial

# The words of --retry, and the statuses that each one runs again.
RETRY: dict[str, frozenset[str]] = {
    "oom": frozenset({"out_of_memory", "out_of_host_memory"}),
    "crash": frozenset({"crashed"}),
    "timeout": frozenset({"timeout"}),
    "infeasible": frozenset({"infeasible"}),
    "unsupported": frozenset({"unsupported"}),
}
ALL, PARALLEL = "all", "parallel"


def parse_retry(text: str) -> frozenset[str]:
    """The statuses to run again, and `PARALLEL` for trials whose times others disturbed.

    Statuses themselves are understood, too: "crashed", "out_of_memory".

    >>> sorted(parse_retry("oom,crash"))
    ['crashed', 'out_of_host_memory', 'out_of_memory']

    Raises:
        UnknownNameError: with the choices.
    """
    statuses = frozenset().union(*RETRY.values())
    chosen: set[str] = set()
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word == ALL:
            chosen |= statuses
        elif word == PARALLEL or word in statuses:
            chosen.add(word)
        elif word in RETRY:
            chosen |= RETRY[word]
        else:
            raise UnknownNameError("word of --retry", word, [*RETRY, ALL, PARALLEL])
    return frozenset(chosen)


def to_run(
    trials: Iterable[Trial], records: Mapping[str, Record], retry: frozenset[str]
) -> list[Trial]:
    """The trials that have no record in `records`, by id, or one that is to be made again."""
    return [trial for trial in trials if _again(records.get(trial.id), retry)]


def _again(record: Record | None, retry: frozenset[str]) -> bool:
    if record is None or record.status in retry:
        return True
    return PARALLEL in retry and record.jobs > 1
