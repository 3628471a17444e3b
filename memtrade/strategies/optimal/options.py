"""What a user may ask of the plan."""

import math
from dataclasses import dataclass
from typing import Literal

from memtrade.errors import MemtradeError
from memtrade.options import option
from memtrade.strategies.budget import BudgetOptions
from memtrade.units import parse_bytes

GOALS = ("time", "memory")


@dataclass(frozen=True, kw_only=True)
class Options(BudgetOptions):
    minimize: str = option(
        "time", "time: the fastest plan within the budget; memory: the smallest peak", choices=GOALS
    )
    host_memory_limit: str = option(
        "",
        "the most host memory for swapped tensors; empty: no limit, or what is free where it runs",
    )
    swap: bool = option(True, "whether tensors may be swapped")
    tolerance: float = option(
        0.01, "without a budget: the fastest plan within this share of the smallest peak"
    )
    time_limit: float = option(
        600.0, "seconds after which planning is cancelled, and the best so far counts"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.host_memory_limit:
            parse_bytes(self.host_memory_limit, "option 'host_memory_limit'")
        if not 0 <= self.tolerance < 1:
            raise MemtradeError(f"tolerance is a share from 0 to 1, not {self.tolerance:g}")
        if not self.time_limit > 0:
            raise MemtradeError(f"time_limit is a positive number, not {self.time_limit:g}")

    @property
    def goal(self) -> Literal["time", "memory"]:
        """Without a budget there is but the memory to be minimized."""
        return "time" if self.minimize == "time" and self.budget else "memory"

    @property
    def host_limit_bytes(self) -> float:
        """A given limit, or none: what happens to be free here says nothing of another machine."""
        return parse_bytes(self.host_memory_limit) if self.host_memory_limit else math.inf
