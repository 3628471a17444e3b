"""Rows of a linear model, collected one by one, handed to it in one block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memtrade.strategies.milp import Milp


class Rows:
    """Entry k stands in row where[k], column columns[k]."""

    def __init__(self) -> None:
        self.where: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(
        self,
        terms: Sequence[tuple[int, float]],
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
    ) -> int:
        """A row of (column, value); returns its index."""
        row = len(self.lower)
        for column, value in terms:
            self.where.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.lower.append(at_least)
        self.upper.append(at_most)
        return row

    def hand_to(self, model: Milp) -> None:
        model.rows(
            len(self.lower),
            rows=self.where,
            columns=self.columns,
            values=self.values,
            lower=self.lower,
            upper=self.upper,
        )
