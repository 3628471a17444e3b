"""The flags that the commands share, and how they become trials.

All of it is checked here, in the parent: what is wrong is said before a child starts and before
anything is written. Only what takes a traced step to know is left to the child.
"""

import dataclasses
import difflib
import errno
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from memtrade.devices import device_names
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.measure import host
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.here import here_target
from memtrade.measure.protocol import ChildTask, TrialSpec
from memtrade.models import OPTIMIZERS, Model, make_model, options_of
from memtrade.models.target import OwnStep
from memtrade.options import NONE, Value, naming_flags
from memtrade.plan import Order, Plan
from memtrade.strategies import STRATEGIES, find_strategy, make_options, read_plan
from memtrade.target import ARENA, Target, profile_target
from memtrade.units import LEAST_LIMIT_BYTES, limit_of

# What a comparison runs unless it is told: the strategies of the thesis.
DEFAULT_STRATEGIES = ("original", "checkpoints", "lms", "ome")

# The share of a GPU's free memory that is the limit unless told; cuDNN and the context need some.
GPU_SHARE = 0.9

# What records say of a step that brings its optimizer along.
OWN_OPTIMIZER = "its own"

MOST_STEPS = 1_000_000  # a record holds the loss and the time of each

Flag = Annotated[bool, Parameter(negative="")]
Verbose = Annotated[bool, Parameter(negative="", help="Pass on what TensorFlow logs.")]
# What was typed, for records and pages: not a flag.
CommandLine = Annotated[str, Parameter(parse=False)]
Pairs = Annotated[list[str], Parameter(negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which training step.

    Attributes:
        model: A name out of `memtrade models`.
        target: A function of your own that makes the training step, as package.module:function,
            in place of a model; it is imported from the current folder.
        layers: Depth of a ResNet.
        version: Of a ResNet: 1, or 2 for pre-activation.
        batch_norm: Of InceptionV4: training, or inference for lasting averages.
        image_size: Height and width of the images in pixels.
        num_classes: Classes to tell apart.
        batch_size: Examples per step.
        data_format: Order of the axes of images, NHWC or NCHW.
        seed: Of the initial weights, the synthetic batch and dropout.
        model_option: Any option of the model as key=value; repeatable.
        optimizer: sgd, momentum, rmsprop or adam.
        learning_rate: The optimizer's own default unless given.
        split: exact runs the widest gradients behind pools in parts along the batch; reordered
            those of batch norms, too, or all that is wide where no batch norm is, which adds
            numbers up in another order: equal within rounding, not to the bit.
    """

    model: str = "resnet"
    target: str | None = None
    layers: int | None = None
    version: int | None = None
    batch_norm: str | None = None
    image_size: int | None = None
    num_classes: int | None = None
    batch_size: int | None = None
    data_format: str | None = None
    seed: int | None = None
    model_option: Pairs = field(default_factory=list)
    optimizer: str = "sgd"
    learning_rate: float | None = None
    split: Literal["none", "exact", "reordered"] = "none"

    def make_model(self) -> Model:
        """Raises MemtradeError for what does not exist or is out of bounds."""
        named = (
            "layers", "version", "batch_norm", "image_size", "num_classes", "batch_size",
            "data_format", "seed",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        if self.target is not None and self.model != ModelFlags.model:
            raise MemtradeError(f"--target is in place of --model {self.model}: give one of them")
        name = self.model if self.target is None else f"{OwnStep.family}/{self.target}"
        options = key_values(self.model_option, "--model-option")
        for option in given.keys() & options:
            both = f"--{option.replace('_', '-')} and --model-option {option}"
            raise MemtradeError(f"{both} say the same: give one of them")
        with naming_flags(given):
            return make_model(name, given | options)

    def update_rule(self, model: Model) -> tuple[str, float | None]:
        """The optimizer and its learning rate; a target has its own."""
        if not isinstance(model, OwnStep):
            return self.optimizer, self.checked_learning_rate()
        if self.optimizer != ModelFlags.optimizer or self.learning_rate is not None:
            raise MemtradeError(
                f"{model.target} has its own optimizer: leave --optimizer and --learning-rate out"
            )
        return OWN_OPTIMIZER, None

    def checked_learning_rate(self) -> float:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)
        rate = OPTIMIZERS[self.optimizer] if self.learning_rate is None else self.learning_rate
        if not (rate > 0 and math.isfinite(rate)):
            raise MemtradeError(f"--learning-rate must be a positive number, not {rate:g}")
        return rate


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StrategyFlags:
    """With what.

    Attributes:
        strategy: Names out of `memtrade strategies`, separated by commas, or all.
        option: An option of the strategies as key=value, for those that have it, or as
            strategy.key=value for one of several; repeatable.
        order: pinned runs the rewritten step in one fixed order, dataflow leaves the order to
            TensorFlow.
        budget: The most device memory, such as 800MB, for strategies that plan for one.
        minimize: time, within the budget; or memory: the smallest peak there is.
        host_memory_limit: The most host memory for swapped tensors, such as 8GB.
    """

    strategy: str | None = None
    option: Pairs = field(default_factory=list)
    order: Order = "pinned"
    budget: str | None = None
    minimize: str | None = None
    host_memory_limit: str | None = None

    def names(
        self, default: Sequence[str] = DEFAULT_STRATEGIES, *, everything: Iterable[str] = STRATEGIES
    ) -> list[str]:
        """The strategies asked for, each once, in the order given; "all" is `everything`."""
        if self.strategy is None:
            return list(default)
        if self.strategy.strip() == "all":
            return list(everything)
        names = [name.strip() for name in self.strategy.split(",")]
        if "all" in names:
            given = f"--strategy all stands alone, not {self.strategy!r}"
            raise MemtradeError(f"{given}: leave the other names out")
        return list(dict.fromkeys(find_strategy(name).name for name in names))

    def typed_options(self, names: Sequence[str]) -> dict[str, Any]:
        """Each strategy's options object, by the strategy's name."""
        given: dict[str, dict[str, Value]] = {name: {} for name in names}
        known = {name: _option_names(name) for name in names}
        for key, value in key_values(self.option, "--option").items():
            scope, dot, option = key.rpartition(".")
            if dot:
                if scope not in given:
                    raise UnknownNameError(f"strategy in --option {key}={value}", scope, names)
                given[scope][option] = value
                continue
            owners = [name for name in names if option in known[name]]
            if not owners:
                choices = sorted(set().union(*known.values()))
                raise UnknownNameError(f"option of {', '.join(names)}", option, choices)
            for name in owners:
                given[name].setdefault(option, value)  # a scoped one goes first
        flags = ("budget", "minimize", "host_memory_limit")
        told = [each for each in flags if getattr(self, each) is not None]
        for key in told:
            owners = [name for name in names if key in known[name]]
            flag = f"--{key.replace('_', '-')}"
            if not owners:
                having = [n for n in STRATEGIES if key in _option_names(n)]
                raise MemtradeError(
                    f"{flag} is for the strategies {', '.join(having)}, not for {', '.join(names)}"
                )
            if all(key in given[name] for name in owners):
                raise MemtradeError(f"{flag} and --option {key} say the same: give one of them")
            for name in owners:
                given[name].setdefault(key, getattr(self, key))
        with naming_flags(told):
            return {name: make_options(name, options) for name, options in given.items()}


def _option_names(strategy: str) -> set[str]:
    return {each.name for each in options_of(find_strategy(strategy).options)}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DeviceFlags:
    """On what, or for what, and how long.

    Attributes:
        device: arena or gpu:N, which are here, or a profile, for commands that run nothing: a name
            out of `memtrade devices`, or a .toml file of one's own (`memtrade calibrate`). Unless
            given: gpu:0 if there is one, else arena.
        memory_limit: A hard limit of the device's memory, such as 7254MiB. Unless given: what the
            profile says; for runs in the arena 7254MiB if the machine has that much to spare, else
            a share of what is free, as on a GPU.
        timeout: Seconds that each trial, or tracing the step, may take.
    """

    device: str | None = None
    memory_limit: str | None = None
    timeout: float = 3600.0

    def resolve(self) -> tuple[str, int]:
        """The device to run on, which is here, and the limit in bytes, a whole number of MiB."""
        gpus, device = self._chosen()
        if device != ARENA and device not in gpus:
            raise _not_there(device, gpus)
        limit_bytes = self._limit(device, gpus)
        if limit_bytes is None:
            limit_bytes = default_limit_bytes()
        return device, limit_bytes >> 20 << 20

    def target(self, order: Order = "pinned") -> Target:
        """What is planned and simulated for: a device that is here, or a profile.

        Raises:
            MemtradeError: neither; the profile or the limit is wrong, and which field.
        """
        gpus, device = self._chosen()
        limit_bytes = self._limit(device, gpus)
        if device == ARENA or device in gpus:
            return here_target(device, order=order, limit_bytes=limit_bytes)
        try:
            return profile_target(device, order=order, limit_bytes=limit_bytes)
        except UnknownNameError:
            raise _not_there(device, gpus) from None

    def _chosen(self) -> tuple[dict[str, host.Gpu], str]:
        """The GPUs that are here, and the device that was asked for, or the first."""
        if not self.timeout > 0:
            raise MemtradeError(f"--timeout is a positive number of seconds, not {self.timeout:g}")
        gpus = {f"gpu:{gpu.index}": gpu for gpu in host.gpus()}
        # A GPU whose size is known has the extra [gpu] installed, so TensorFlow can use it.
        usable = (name for name, gpu in gpus.items() if gpu.memory_bytes is not None)
        return gpus, self.device or next(usable, ARENA)

    def _limit(self, device: str, gpus: Mapping[str, host.Gpu]) -> int | None:
        """The memory limit that was given, or else what a GPU here has to give, in bytes."""
        least_bytes = LEAST_LIMIT_BYTES if device == ARENA else 1 << 20
        given = limit_of("--memory-limit", self.memory_limit, least_bytes=least_bytes)
        return _share(gpus[device], device) if given is None and device in gpus else given


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StepFlags:
    """Which step, with what, on what."""

    model: ModelFlags = ModelFlags()
    strategy: StrategyFlags = StrategyFlags()
    device: DeviceFlags = DeviceFlags()


def _share(gpu: host.Gpu, name: str) -> int:
    if gpu.free_bytes is None:
        raise MemtradeError(
            f"the size of {name} is not known without nvidia-ml-py: "
            "install it, or say --memory-limit"
        )
    return int(gpu.free_bytes * GPU_SHARE)


def _not_there(device: str, gpus: Iterable[str]) -> MemtradeError:
    """What is neither here nor a profile, or a profile where something is to be run."""
    here, profiles = [ARENA, *gpus], device_names()
    what = f"unknown device {device!r}"
    if device in profiles or Path(device).is_file():
        what = f"{device} is a profile, and nothing can run on it"
    # No profile is near gpu:1: a GPU that is not here has no other name.
    known = [] if device.startswith("gpu") else [*here, *profiles]
    near = difflib.get_close_matches(device, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near and near[0] != device else ""
    return MemtradeError(
        f"{what}: {hint}Here are {', '.join(here)}; profiles, to plan and predict for, are "
        f"{', '.join(profiles)}, or a .toml file by `memtrade calibrate`"
    )


def make_specs(
    step: StepFlags,
    *,
    task: ChildTask,
    names: Sequence[str],
    steps: int = 1,
    warmup: int = 1,
    plan: Path | None = None,
) -> list[TrialSpec]:
    """The trials that the flags ask for: one per strategy, or the one of a saved plan.

    Raises:
        MemtradeError: for whatever is wrong with any of the flags.
    """
    check_steps(steps, warmup)
    model, strategy = step.model, step.strategy
    saved = None if plan is None else _saved(plan, strategy)
    made = model.make_model()
    optimizer, rate = model.update_rule(made)
    chosen = {name: dataclasses.asdict(o) for name, o in strategy.typed_options(names).items()}
    if saved is not None:  # it says its own
        chosen = {saved.strategy: saved.options}
    device_name, limit_bytes = step.device.resolve()
    if host.tensorflow_version() is None:
        raise MemtradeError(
            "TensorFlow is not installed: pip install 'memtrade[cpu]', or memtrade[gpu]"
        )
    base = TrialSpec(
        task=task,
        model=made.family,
        model_options=dataclasses.asdict(made),
        optimizer=optimizer,
        learning_rate=rate,
        split="" if model.split == NONE else model.split,
        order=saved.order if saved else strategy.order,
        plan_path=str(plan.resolve()) if plan else None,
        device=device_name,
        memory_limit_bytes=limit_bytes,
        steps=steps,
        warmup=warmup,
    )
    return [
        msgspec.structs.replace(base, strategy=name, strategy_options=options)
        for name, options in chosen.items()
    ]


def _saved(path: Path, flags: StrategyFlags) -> Plan:
    """Raises MemtradeError where a flag would decide what the plan has decided."""
    plan, unsaid = read_plan(path), vars(StrategyFlags())
    same = unsaid | {"order": plan.order}
    if given := [name for name, v in vars(flags).items() if v not in (unsaid[name], same[name])]:
        words = " and --".join(given).replace("_", "-")
        raise MemtradeError(f"--plan runs a saved plan: leave --{words} out")
    return plan


def check_steps(steps: int, warmup: int) -> None:
    """Raises MemtradeError for no counted step, fewer than none before, or more than are kept."""
    for name, count, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if count < least:
            raise MemtradeError(f"--{name} must be at least {least}, not {count}")
        if count > MOST_STEPS:
            raise MemtradeError(f"--{name} must be at most {MOST_STEPS:,}, not {count:,}")


def key_values(pairs: Sequence[str], flag: str) -> dict[str, Value]:
    """The pairs of a repeatable flag. Raises MemtradeError where one has no key or no "=", or is
    there twice."""
    found: dict[str, Value] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.strip()):
            raise MemtradeError(f"{flag} takes key=value, not {pair!r}")
        if (name := key.strip().replace("-", "_")) in found:
            raise MemtradeError(f"{flag} {name} is given more than once: give it once")
        found[name] = value.strip()
    return found


def check_writable(folder: Path) -> None:
    """Raises MemtradeError unless files can be written to `folder`, which need not exist yet.

    It is tried with a file that leaves no trace; the folder itself is not made.
    """
    existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise MemtradeError(
            f"cannot write to the folder {str(folder)!r}: {error.strerror}: "
            "choose another one with --results"
        ) from error
