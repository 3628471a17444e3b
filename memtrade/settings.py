"""How steps are rewritten: what `memtrade.apply` and its friends are told, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from os import PathLike
from typing import Any, get_args

import tensorflow as tf

from memtrade.errors import MemtradeError, check_name
from memtrade.measure import host
from memtrade.measure.flags import GPU_SHARE
from memtrade.measure.here import here_target
from memtrade.options import Value, options_of
from memtrade.plan import Order
from memtrade.strategies import Strategy, find_planned, make_options
from memtrade.target import ARENA, Target
from memtrade.tf.swap import HostTransfer, transfer_from
from memtrade.units import bytes_of

# In place of a strategy: the step as it is where it fits, else the fastest plan that fits.
AUTO = "auto"
ORIGINAL, _FASTEST = "original", "optimal"


@dataclass(frozen=True)
class Settings:
    """How steps are rewritten.

    Attributes:
        budget_bytes: what the peak may reach; None for no budget.
        automatic: whether a step that fits is left as it is.
        asked: whether the budget is the user's, or the device's memory.
    """

    strategy: Strategy
    options: Any
    budget_bytes: int | None
    device_name: str
    profile: str | None
    target: Target
    transfer: HostTransfer
    automatic: bool = False
    asked: bool = True

    @property
    def tf_device(self) -> str:
        """As TensorFlow calls the device: "GPU:0"."""
        return "CPU:0" if self.device_name == ARENA else self.device_name.upper()

    def on(self, device: str) -> Settings:
        """The same on the device of a replica ("GPU:1"); "" is the device that was asked for."""
        name = device.lower() if device.startswith("GPU") else ARENA
        if not device or name == self.device_name:
            return self
        target = here_target(name, profile=self.profile, order=self.target.order)
        return replace(self, device_name=name, target=target, transfer=transfer_from(name))


def settings_of(
    strategy: str,
    *,
    budget: str | int | None = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    **options: Value,
) -> Settings:
    """Raises MemtradeError for what does not exist or is out of bounds; see `memtrade.apply`."""
    automatic, asked = strategy == AUTO, budget is not None
    chosen = find_planned(planned_name(strategy))
    given = dict(options)
    known = {each.name for each in options_of(chosen.options)}
    budget_bytes = None if budget is None else bytes_of(budget, "budget")
    if budget_bytes is not None and budget_bytes <= 0:
        raise MemtradeError(f"a budget must be more than nothing, not {budget!r}")
    check_name("order", order, get_args(Order))
    for what, named in (("device", device), ("profile", profile)):
        if named is not None and not isinstance(named, str | PathLike):
            raise MemtradeError(f"{what} is a name, such as gpu:0 or gtx-1070, not {named!r}")
    device = device_of(device)
    transfer = transfer_from(device)
    target = here_target(device, profile=profile, order=order)
    if automatic:
        if budget_bytes is None:
            budget_bytes = memory_bytes(device, target)
        if device == ARENA:
            given.setdefault("swap", False)  # what is swapped stays in the same memory
    if budget_bytes is not None and "budget" in known:
        given["budget"] = budget if isinstance(budget, str) else f"{budget_bytes}B"
    made = make_options(chosen.name, given)
    return Settings(chosen, made, budget_bytes, device, profile, target, transfer, automatic, asked)


def planned_name(strategy: str) -> str:
    """The strategy that makes the plans."""
    return _FASTEST if strategy == AUTO else strategy


def check_count(name: str, count: Any, *, least: int = 1, optional: bool = False) -> None:
    """Raises MemtradeError for what is no whole number from `least` on, nor None where it may."""
    whole = isinstance(count, Integral) and not isinstance(count, bool)
    if not (optional and count is None) and (not whole or count < least):
        raise MemtradeError(f"{name} is a whole number from {least} on, not {count!r}")


def device_of(device: str | None) -> str:
    """What a user calls a device, or the one that TensorFlow would use: "arena" or "gpu:N"."""
    device = device or ("gpu:0" if tf.config.list_logical_devices("GPU") else ARENA)
    return ARENA if device == "cpu" else device


def told_bytes(number: int) -> int | None:
    """The limit that TensorFlow was given of a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    told = tf.config.get_logical_device_configuration(gpus[number]) if gpus else None
    limits = [each.memory_limit for each in told or () if each.memory_limit]
    return int(limits[0]) << 20 if limits else None  # it means MiB


def memory_bytes(device: str, target: Target) -> int:
    """What a step may take of a device, unless the user says it.

    A profile's memory; a GPU's limit as TensorFlow was told, or 90% of the card; on the CPU what
    the machine has free, less what others and the process itself need.

    Raises:
        MemtradeError: nothing tells the size of the card.
    """
    if not target.here:
        return target.limit_bytes
    if device == ARENA:
        return host.room_bytes()
    number = int(device.partition(":")[2])
    told = told_bytes(number)
    if told is not None:
        return told
    for card in host.gpus():
        if card.index == number and card.memory_bytes is not None:
            return int(card.memory_bytes * GPU_SHARE)
    raise MemtradeError(
        f"the size of {device} is not known without nvidia-ml-py: install it, or say budget="
    )
