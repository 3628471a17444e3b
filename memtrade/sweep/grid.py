"""The TOML file of a sweep, read into trials.

    steps = 3                           # above the blocks: holds for all of them

    [[grid]]
    model = [{ name = "resnet", layers = [18, 50] }, "inception-v4"]
    strategy = ["original", { name = "lms", lb = [1, 3] }]
    batch_size = [32, 128]
    memory_limit = "7254MiB"

Keys are the flags of `memtrade run`, with the same defaults and the same checks. A list is an axis
of the grid; a model or a strategy with options is a table with its `name`, and a list there is an
axis, too. Each block makes the trials of all combinations, strategies fastest; a trial that two
blocks make is one trial. What only some of a block's strategies know, such as a budget, is theirs.
"""

import dataclasses
import functools
import itertools
import re
import tomllib
import typing
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.measure.flags import (
    DEFAULT_STRATEGIES,
    DeviceFlags,
    ModelFlags,
    StepFlags,
    StrategyFlags,
    make_specs,
)
from memtrade.measure.host import describe_machine
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import options_text, trial_id, unusual_strategy_options
from memtrade.models import make_model, options_of
from memtrade.results.words import step_conditions
from memtrade.strategies import find_strategy
from memtrade.sweep.positions import Positions

T = TypeVar("T")

GRID = "grid"

# Says for a block's device flags on what its trials run: the device and its limit in bytes.
Resolve = Callable[[DeviceFlags], tuple[str, int]]


def _keys_of(flags: type, *, without: Sequence[str]) -> dict[str, Any]:
    """The keys that a class of flags stands for, with their types."""
    hints = typing.get_type_hints(flags)
    return {each.name: hints[each.name] for each in dataclasses.fields(flags)
            if each.name not in without}  # fmt: skip


# Options of models and strategies, which on a command line are key=value, are tables here.
_MODEL_KEYS = _keys_of(ModelFlags, without=["model", "model_option"])
_STRATEGY_KEYS = _keys_of(StrategyFlags, without=["strategy", "option"])
_DEVICE_KEYS = _keys_of(DeviceFlags, without=[])
_STEP_KEYS = {"steps": int, "warmup": int}
_NAMED = ("model", "strategy")
_SIMPLE_KEYS = _MODEL_KEYS | _STRATEGY_KEYS | _DEVICE_KEYS | _STEP_KEYS
KEYS = (*_NAMED, *_SIMPLE_KEYS)

# Not part of what a trial is, so no axis.
_NO_AXIS = ("timeout",)

_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a sweep. `id` is that of its record."""

    spec: TrialSpec
    timeout_seconds: float
    id: str

    @property
    def step(self) -> str:
        """Which training step: "resnet-50 batch 32"."""
        options = self.spec.model_options
        name = make_model(self.spec.model, options).name
        return f"{name} batch {options['batch_size']} {step_conditions(self.spec)}".strip()

    @property
    def strategy(self) -> str:
        """The strategy with the options that are not the default: "lms lb=3"."""
        options = options_text(unusual_strategy_options(self.spec))
        return f"{self.spec.strategy} {options}".strip()

    @property
    def limit(self) -> str:
        """The limit of memory, in MiB as it is enforced."""
        return f"{(self.spec.memory_limit_bytes or 0) >> 20} MiB"

    @property
    def label(self) -> str:
        return f"{self.step}, {self.strategy}, {self.limit}"


def read_sweep(path: Path, *, resolve: Resolve = DeviceFlags.resolve) -> list[Trial]:
    """The trials that the file asks for, each once, in the order of the file.

    Raises:
        MemtradeError: for whatever is wrong with the file, with the line, the key and the choices.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise MemtradeError(f"cannot read the sweep {path}: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError, which names the line
        raise MemtradeError(f"{path} is not TOML: {error}") from error
    # A default limit follows from the memory that is free, and holds for all trials of a sweep.
    reader = _Reader(path, Positions(text, name=GRID), functools.cache(resolve))
    blocks = document.pop(GRID, None)
    reader.check_keys(0, document)
    if not (isinstance(blocks, list) and blocks and all(isinstance(each, dict) for each in blocks)):
        raise MemtradeError(f"{path}: a sweep has its trials in blocks: write a line [[{GRID}]]")
    specs: dict[bytes, tuple[TrialSpec, float]] = {}
    for number, block in enumerate(blocks, start=1):
        reader.check_keys(number, block)
        if not document | block:
            raise reader.error(number, "", "", "an empty block: give a model, a strategy, or both")
        for spec, timeout_seconds in reader.trials(number, document | block):
            specs.setdefault(msgspec.json.encode(spec), (spec, timeout_seconds))
    machine = describe_machine()
    return [
        Trial(spec=spec, timeout_seconds=timeout_seconds, id=trial_id(spec, machine))
        for spec, timeout_seconds in specs.values()
    ]


@dataclass(frozen=True, kw_only=True)
class _Resolved(DeviceFlags):
    """Device flags of which it is known what they come to."""

    on: tuple[str, int]

    def resolve(self) -> tuple[str, int]:
        return self.on


@dataclass(frozen=True)
class _Reader:
    """Reads blocks; knows where they stand in the file."""

    path: Path
    positions: Positions
    resolve: Resolve

    def check_keys(self, block: int, settings: Mapping[str, Any]) -> None:
        """Raises MemtradeError for a key that there is not."""
        for key in settings:
            if key not in KEYS:
                why: object = UnknownNameError("key", key, KEYS)
                if key == "pipeline":
                    why = "[[pipeline]] is for `memtrade pipeline sweep`"
                elif not block and isinstance(settings[key], list | dict):
                    why = f"unknown key {key!r}: trials are in blocks, write [[{GRID}]]"
                raise self.error(block, key, "", why)

    def trials(self, block: int, settings: Mapping[str, Any]) -> Iterator[tuple[TrialSpec, float]]:
        """What one block makes, and how many seconds each trial may take."""

        def on(given: Mapping[str, Any]) -> _Resolved:
            return _Resolved(**given, on=self.resolve(DeviceFlags(**given)))

        axes = {
            key: self._axis(block, key, settings[key]) for key in _SIMPLE_KEYS if key in settings
        }
        models = self._named(block, "model", settings.get("model", ModelFlags().model))
        strategies = [
            (each, options)
            for name, options in self._named(
                block, "strategy", settings.get("strategy", list(DEFAULT_STRATEGIES))
            )
            for each in self._names(block, name)
        ]
        names = [name for name, _ in strategies]
        for model, model_options in models:
            for point in _product({key: axes[key] for key in axes if key not in _STRATEGY_KEYS}):
                model_flags = self._model(block, model, model_options, _only(point, _MODEL_KEYS))
                device_flags = self._made(block, on, _only(point, _DEVICE_KEYS))
                steps = _only(point, _STEP_KEYS)
                for (name, options), chosen in itertools.product(
                    strategies, list(_product(_only(axes, _STRATEGY_KEYS)))
                ):
                    flags = self._strategy(block, name, options, _meant_for(name, chosen, names))
                    spec = self._spec(block, model_flags, flags, device_flags, name, steps)
                    yield spec, device_flags.timeout

    def _axis(self, block: int, key: str, value: Any) -> list[Any]:
        """The values of a simple key, of the key's type."""
        if isinstance(value, list) and key in _NO_AXIS:
            raise self.error(block, key, "", f"one value for the whole block, not {value!r}")
        return [self._typed(block, key, each) for each in self._several(block, key, value)]

    def _several(self, block: int, key: str, value: Any) -> list[Any]:
        if value == []:
            raise self.error(block, key, "", "an empty list makes no trials: leave the key out")
        return value if isinstance(value, list) else [value]

    def _typed(self, block: int, key: str, value: Any) -> Any:
        hint = _SIMPLE_KEYS[key]
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            if value not in choices:
                raise self.error(block, key, str(value), UnknownNameError(key, str(value), choices))
            return value
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError:
            kinds = [_TYPE_NAMES[kind] for kind in (hint, *typing.get_args(hint))
                     if kind in _TYPE_NAMES]  # fmt: skip
            rule = f"must be {' or '.join(kinds)}, not {value!r}"
            raise self.error(block, key, str(value), rule) from None

    def _named(self, block: int, key: str, value: Any) -> list[tuple[str, dict[str, Any]]]:
        """Names with options, one for each combination of the options' values."""
        found: list[tuple[str, dict[str, Any]]] = []
        for entry in self._several(block, key, value):
            options = dict(entry) if isinstance(entry, dict) else {"name": entry}
            name = options.pop("name", None)
            if not isinstance(name, str):
                rule = f'must be a name or a table {{ name = "...", ... }}, not {entry!r}'
                raise self.error(block, key, "", rule)
            axes = {each: self._several(block, key, options[each]) for each in options}
            for each, values in axes.items():
                for one in values:
                    if not isinstance(one, str | int | float):
                        rule = f"option {each!r} must be a number, a word, or a list of them"
                        raise self.error(block, key, each, f"{rule}, not {one!r}")
            found += [(name, point) for point in _product(axes)]
        return found

    def _names(self, block: int, strategy: str) -> list[str]:
        """The strategies that an entry means: one, or "all" of them."""
        flags = StrategyFlags(strategy=strategy)
        return self._made(block, lambda _: flags.names(), {}, within="strategy", of=strategy)

    def _model(
        self, block: int, name: str, options: Mapping[str, Any], point: Mapping[str, Any]
    ) -> ModelFlags:
        def make(given: Mapping[str, Any]) -> ModelFlags:
            pairs, simple = _options_apart(given, options)
            flags = ModelFlags(model=name, model_option=pairs, **simple)
            flags.make_model()
            flags.checked_learning_rate()
            return flags

        given = {**point, **options}
        return self._made(block, make, given, inside=options, within="model", of=name)

    def _strategy(
        self, block: int, name: str, options: Mapping[str, Any], point: Mapping[str, Any]
    ) -> StrategyFlags:
        def make(given: Mapping[str, Any]) -> StrategyFlags:
            pairs, simple = _options_apart(given, options)
            flags = StrategyFlags(strategy=name, option=pairs, **simple)
            flags.typed_options([name])
            return flags

        given = {**point, **options}
        return self._made(block, make, given, inside=options, within="strategy", of=name)

    def _spec(
        self,
        block: int,
        model: ModelFlags,
        strategy: StrategyFlags,
        device: DeviceFlags,
        name: str,
        steps: Mapping[str, int],
    ) -> TrialSpec:
        counts = {"steps": TrialSpec().steps, "warmup": TrialSpec().warmup}
        flags = StepFlags(model=model, strategy=strategy, device=device)

        def make(given: Mapping[str, Any]) -> TrialSpec:
            return make_specs(flags, task="measure", names=[name], **{**counts, **given})[0]

        return self._made(block, make, steps) if steps else make({})

    def _made(
        self,
        block: int,
        make: Callable[[Mapping[str, Any]], T],
        given: Mapping[str, Any],
        *,
        inside: Iterable[str] = (),
        within: str = "",
        of: str = "",
    ) -> T:
        """What `make` makes of all that is given.

        Where it can't, the error has the place of the first key that is wrong by itself, else of
        `within`, the key of the name `of`, in whose table the keys of `inside` stand.
        """
        try:
            return make(given)
        except MemtradeError as error:
            wrong, place = error, (within, of)
        if _failure(make, {}) is None:
            for key, value in given.items():
                if (alone := _failure(make, {key: value})) is not None:
                    wrong, place = alone, (within, key) if key in inside else (key, str(value))
                    break
        elif isinstance(wrong, UnknownNameError):
            named = (key for key, value in given.items() if value == wrong.name)
            place = next(((key, wrong.name) for key in named), place)
        raise self.error(block, *place, wrong) from None

    def error(self, block: int, key: str, word: str, why: object) -> MemtradeError:
        # The flags' messages speak of --memory-limit where a file has memory_limit.
        text = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), str(why))
        line = self.positions.line(block, key, word)
        about = f", {key}" if key in KEYS and not text.startswith(f"{key} ") else ""
        return MemtradeError(f"{self.path}, line {line}{about}: {text}")


def _meant_for(
    strategy: str, chosen: Mapping[str, Any], strategies: Sequence[str]
) -> dict[str, Any]:
    """What of a block's settings one of its strategies gets. A setting that is an option of some of
    them, such as the budget, is for those; what is an option of none is for all."""

    def has(name: str, key: str) -> bool:
        return any(option.name == key for option in options_of(find_strategy(name).options))

    return {key: value for key, value in chosen.items()
            if has(strategy, key) or not any(has(name, key) for name in strategies)}  # fmt: skip


def _options_apart(
    given: Mapping[str, Any], options: Container[str]
) -> tuple[list[str], dict[str, Any]]:
    """The options as key=value, as flags take them, and what else is given."""
    pairs = [f"{key}={value}" for key, value in given.items() if key in options]
    return pairs, {key: value for key, value in given.items() if key not in options}


def _failure(
    make: Callable[[Mapping[str, Any]], object], given: Mapping[str, Any]
) -> MemtradeError | None:
    try:
        make(given)
    except MemtradeError as error:
        return error
    return None


def _product(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the axes' values, the last axis fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _only(given: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}
