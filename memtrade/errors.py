"""The errors that users meet: one line that says the rule, the value, and what to do next."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any

# What a mistake of this tool's own would raise.
OURS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip

# What a peak is due to that no op of the step has: the runtime computes constants in advance.
BEFORE_ANY_OP = "variables, batch and what is computed of constants, before the first op"


class MemtradeError(Exception):
    """Bad input, or something that this tool does not support. The command line exits with 2.

    >>> import pickle
    >>> str(pickle.loads(pickle.dumps(InfeasibleBudgetError(2_000_000, 1_000_000, "conv"))))[:36]
    'no plan fits a budget of 1.0 MB: the'
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # A child's error reaches its parent though its class takes no message.
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[MemtradeError], args: tuple[Any, ...]) -> MemtradeError:
    made = kind.__new__(kind)
    made.args = args
    return made


class UnknownNameError(MemtradeError):
    """A name that is not among the valid ones.

    >>> str(UnknownNameError("strategy", "omee", ["ome", "lms"]))
    "unknown strategy 'omee': did you mean 'ome'? The choices are lms, ome"
    >>> str(UnknownNameError("option of original", "lb", []))
    "unknown option of original 'lb': there are none"
    >>> str(UnknownNameError("split", None, ["exact"]))
    'unknown split None: The choices are exact'
    >>> str(UnknownNameError("strategy", "", ["ome", "lms"]))
    "unknown strategy '', an empty name: is there a comma too many? The choices are lms, ome"
    >>> str(UnknownNameError("step", "vgg", ["resnet-50", "resnet-50, batch 32"]))
    "unknown step 'vgg': The choices are resnet-50; resnet-50, batch 32"
    """

    def __init__(self, what: str, name: object, choices: Iterable[str]):
        self.what, self.name, self.choices = what, str(name), sorted(choices)
        named = [name] if isinstance(name, str) else []
        near = [m for n in named for m in difflib.get_close_matches(n, self.choices, 1, cutoff=0.5)]
        hint = f"did you mean {near[0]!r}? " if near else ""
        apart = "; " if any("," in each for each in self.choices) else ", "
        listed = f"The choices are {apart.join(self.choices)}" if self.choices else "there are none"
        empty = "" if str(name).strip() else ", an empty name: is there a comma too many?"
        super().__init__(f"unknown {what} {name!r}{empty or ':'} {hint}{listed}")


def check_name(what: str, name: object, choices: Collection[str]) -> None:
    """Raises UnknownNameError where it is none of the choices."""
    if name not in choices:
        raise UnknownNameError(what, name, choices)


class RuleError(MemtradeError):
    """What must be so and is not. Who knows by which flag it was given can name that in its place.

    >>> str(RuleError("option 'layers'", "must be at least 1, not 0"))
    "option 'layers' must be at least 1, not 0"
    """

    def __init__(self, what: str, rule: str):
        self.what, self.rule = what, rule
        super().__init__(f"{what} {rule}")


class UnsupportedGraphError(MemtradeError):
    """A training step that cannot be read or rewritten; the message names the op."""


class InvalidPlanError(MemtradeError):
    """A plan that does not belong to the graph, or that asks for the impossible."""


class InfeasibleBudgetError(MemtradeError):
    """No plan reaches the budget. Carries the smallest peak found and the op that binds it; without
    one, it is what lies there when the step begins.

    >>> str(InfeasibleBudgetError(2_000_000, 1_000_000, "conv")).split("is ")[1]
    '2.0 MB, bound by conv. Give a larger budget or a smaller batch'
    >>> str(InfeasibleBudgetError(6_640_000, 6_570_000, "conv")).partition(", bound")[0]
    'no plan fits a budget of 6.57 MB: the smallest peak found is 6.64 MB'
    """

    def __init__(self, needed_bytes: int, budget_bytes: int, op: str):
        self.needed_bytes, self.budget_bytes, self.op = needed_bytes, budget_bytes, op
        budget, needed = sizes_apart(budget_bytes, needed_bytes)
        super().__init__(
            f"no plan fits a budget of {budget}: the smallest peak found is {needed}, bound "
            f"by {op or BEFORE_ANY_OP}. Give a larger budget or a smaller batch"
        )


def reason_of(error: Exception) -> str:
    """What an error says, without the path or the address that is told beside it.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'No such file or directory'
    >>> reason_of(ValueError("no number"))
    'no number'
    """
    return str(getattr(error, "strerror", None) or error)


def sizes_apart(*sizes: int) -> list[str]:
    """Bytes in the unit that suits each, with as many decimals as it takes for different ones to
    read so.

    >>> sizes_apart(6_570_000, 6_640_000), sizes_apart(5_000, 47_210_000), sizes_apart(40)
    (['6.57 MB', '6.64 MB'], ['5.0 KB', '47.2 MB'], ['40 bytes'])
    """
    tried = ([_in_unit(size, decimals) for size in sizes] for decimals in range(1, 7))
    return next(texts for texts in tried if len({*texts}) == len({*sizes}))  # six tell every byte


def _in_unit(size: int, decimals: int) -> str:
    for least, unit, name in ((100_000, 1e6, "MB"), (100, 1e3, "KB")):
        if size >= least:
            return f"{size / unit:,.{decimals}f} {name}"
    return f"{size} bytes"
