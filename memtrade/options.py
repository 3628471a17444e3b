"""The options of a model: a dataclass field that knows its documentation and what it allows.

>>> @dataclasses.dataclass(frozen=True, kw_only=True)
... class Toy:
...     layers: int = option(3, "number of layers", choices=(3, 5))
>>> [(each.name, each.type, each.default) for each in options_of(Toy)]
[('layers', 'int', 3)]
>>> convert(options_of(Toy)[0], "5")
5
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from memtrade.errors import MemtradeError, RuleError, UnknownNameError

Value = str | int | float | bool
T = TypeVar("T")

# The optimizers by name, with the learning rate that each gets when none is asked for. They are
# written in memtrade.tf.optimizers; the names are here so that they can be listed without
# TensorFlow.
OPTIMIZERS: dict[str, float] = {"sgd": 0.01, "momentum": 0.01, "rmsprop": 0.001, "adam": 0.001}

# Which ops run in parts along the batch (`memtrade.tf.split`): those whose parts make the same
# bits, or those that add up over the batch, too. And how many parts.
NONE, EXACT, REORDERED = "none", "exact", "reordered"
SPLITS = (NONE, EXACT, REORDERED)
PARTS = 8

# TensorFlow's whole numbers end here.
_MOST_WHOLE = (1 << 63) - 1

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a model, as `memtrade models` lists it.

    Attributes:
        type: "int", "float", "bool" or "str", which is the type of the default.
        choices: the only values allowed, or none if any is.
        at_least, below: bounds of a number, or None.
    """

    name: str
    type: str
    default: Value
    doc: str
    choices: tuple[Value, ...] = ()
    at_least: float | None = None
    below: float | None = None


def option(
    default: Value,
    doc: str,
    *,
    choices: tuple[Value, ...] = (),
    at_least: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field with its documentation and its bounds. Whole numbers start at 1."""
    if at_least is None and type(default) is int and not choices:
        at_least = 1
    return dataclasses.field(
        default=default,
        metadata={"doc": doc, "choices": choices, "at_least": at_least, "below": below},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What has options: their values are checked on construction.

    Raises:
        MemtradeError: a value of the wrong type or out of bounds.
    """

    def __post_init__(self) -> None:
        for each in options_of(type(self)):
            check(each, getattr(self, each.name))


def options_of(model: type) -> tuple[Option, ...]:
    """The options of a model's dataclass, in the order in which they are declared."""
    return tuple(
        Option(
            name=field.name,
            type=type(field.default).__name__,
            default=field.default,  # pyright: ignore[reportArgumentType]  # option() gives one
            **field.metadata,
        )
        for field in dataclasses.fields(model)
    )


def convert(option: Option, value: Value) -> Value:
    """`value`, often text from a command line, as the option's type.

    Raises:
        RuleError: the text does not say such a value.
    """
    try:
        if option.type == "bool":
            return _BOOLEANS[str(value).lower()]
        if option.type == "int":
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            return int(value)
        return float(value) if option.type == "float" else str(value)
    except (TypeError, ValueError, KeyError):
        rule = f"must be {_KINDS[option.type]}, not {value!r}: the default is {option.default!r}"
        raise RuleError(f"option {option.name!r}", rule) from None


def make_from_words(kind: type[T], given: Mapping[str, Value] | None, *, of: str) -> T:
    """A dataclass of options from values that may be text; keys may be written with hyphens.

    `of` is what the options belong to, for the message.

    Raises:
        UnknownNameError: there is no such option.
        MemtradeError: a value of the wrong type or out of bounds.
    """
    known = {each.name: each for each in options_of(kind)}
    values = {}
    for key, value in (given or {}).items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UnknownNameError(f"option of {of}", key, known)
        values[name] = convert(known[name], value)
    return kind(**values)


@contextlib.contextmanager
def naming_flags(given: Iterable[str]) -> Iterator[None]:
    """Has refusals of options that were given by flags of their own name these."""
    try:
        yield
    except RuleError as error:
        flags = {f"option {name!r}": f"--{name.replace('_', '-')}" for name in given}
        if error.what not in flags:
            raise
        raise MemtradeError(f"{flags[error.what]} {error.rule}") from None


def check(option: Option, value: object) -> None:
    """Checks a value of the right or the wrong type against the option's type and bounds.

    Raises:
        RuleError: naming the rule, the value, and what is allowed.
    """
    named = f"option {option.name!r}"
    right_type = type(value).__name__ == option.type or (
        option.type == "float" and type(value) is int
    )
    if not right_type:
        raise RuleError(named, f"must be {_KINDS[option.type]}, not {value!r}")
    if not isinstance(value, str) and not math.isfinite(value):  # pyright: ignore[reportArgumentType]
        raise RuleError(named, f"must be a finite number, not {value!r}")
    if option.choices and value not in option.choices:
        choices = ", ".join(str(choice) for choice in option.choices)
        raise RuleError(named, f"must be one of {choices}, not {value!r}")
    if option.at_least is not None and value < option.at_least:  # pyright: ignore[reportOperatorIssue]
        raise RuleError(named, f"must be at least {option.at_least:g}, not {value!r}")
    if option.type == "int" and value > _MOST_WHOLE:  # pyright: ignore[reportOperatorIssue]
        raise RuleError(named, f"must be at most {_MOST_WHOLE}, not {value!r}")
    if option.below is not None and value >= option.below:  # pyright: ignore[reportOperatorIssue]
        raise RuleError(named, f"must be below {option.below:g}, not {value!r}")
