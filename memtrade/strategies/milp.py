"""A thin wrapper over HiGHS: minimise a linear cost under linear rows, some columns being integer.

    minimise    cost . x
    subject to  lower <= A x <= upper  for each row,  lower <= x <= upper  for each column

Columns and rows are added in blocks, as arrays; a block's entries are triplets, and entries of the
same row and column add up.

    >>> model = Model()
    >>> x = model.columns(3, cost=[1, 2, 3], upper=1, integer=True)
    >>> _ = model.rows(1, rows=[0, 0, 0], columns=x, values=[4, 3, 2], lower=5)
    >>> model.solve().values.tolist()
    [1.0, 1.0, 0.0]

HiGHS runs on one thread with a fixed seed, so the same model has the same solution, except where a
time limit ends the search: a `node_limit` ends it at the same place on every machine. Nothing is
printed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from memtrade.errors import MemtradeError

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

_STATUS = highspy.HighsModelStatus
# What these leave behind is a solution if there is one, but nothing is proven.
_STOPPED = frozenset(
    {_STATUS.kTimeLimit, _STATUS.kIterationLimit, _STATUS.kSolutionLimit, _STATUS.kInterrupt}
)
# A value so close to a whole number is one.
_WHOLE = 1e-6
# The relaxation is rounded first where this share of its integer columns is whole, or where there
# are so many that the whole model takes long.
_MOSTLY = 0.95
_LARGE = 1000
# The whole model's tree is cut off at so many nodes: its best solution is found long before.
_NODES = 50


@dataclass(frozen=True)
class Solution:
    """What the solver found.

    Attributes:
        status: optimal: within the gap of the best there is. feasible: a limit was reached first.
            unknown: a limit was reached before anything was found.
        values: of the columns, those of integer columns rounded; empty where there is none.
        objective: the cost of `values`; infinite where there is none.
        bound: no solution costs less than this. Minus infinity where nothing is known.
    """

    status: Status
    values: Floats
    objective: float
    bound: float

    @property
    def found(self) -> bool:
        return self.status in ("optimal", "feasible")

    @property
    def gap(self) -> float:
        """How much cheaper a better solution could be, as a share of this one's cost."""
        if not self.found:
            return math.inf
        return max(0.0, self.objective - self.bound) / max(abs(self.objective), 1e-12)


class Model:
    """Columns and rows, collected in blocks until `solve`."""

    def __init__(self) -> None:
        self.column_count = self.row_count = 0
        self._columns: list[tuple[Floats, Floats, Floats, NDArray[np.bool_]]] = []
        self._rows: list[tuple[Floats, Floats]] = []
        self._entries: list[tuple[Indices, Indices, Floats]] = []

    def columns(
        self,
        count: int,
        *,
        cost: ArrayLike = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = math.inf,
        integer: ArrayLike = False,
    ) -> Indices:
        """Adds `count` columns; what is given is one value for all or one for each.

        Returns:
            Their indices, ascending.
        """
        made = np.arange(self.column_count, self.column_count + count)
        self.column_count += count
        block = [np.broadcast_to(np.asarray(v, dtype=float), count) for v in (cost, lower, upper)]
        self._columns.append(
            (block[0], block[1], block[2], np.broadcast_to(np.asarray(integer, bool), count))
        )
        return made

    def rows(
        self,
        count: int,
        *,
        rows: ArrayLike,
        columns: ArrayLike,
        values: ArrayLike,
        lower: ArrayLike = -math.inf,
        upper: ArrayLike = math.inf,
    ) -> Indices:
        """Adds `count` rows. Entry k stands in row `rows[k]` of this block, counted from 0.

        Raises IndexError for a row outside the block or a column that was not added.

        Returns:
            The rows' indices, ascending.
        """
        made = np.arange(self.row_count, self.row_count + count)
        self.row_count += count
        bounds = [np.broadcast_to(np.asarray(v, dtype=float), count) for v in (lower, upper)]
        self._rows.append((bounds[0], bounds[1]))
        where, which, what = np.broadcast_arrays(
            np.asarray(rows, np.int64), np.asarray(columns, np.int64), np.asarray(values, float)
        )
        for indices, end in ((where, count), (which, self.column_count)):
            if indices.size and not 0 <= indices.min() <= indices.max() < end:
                raise IndexError(f"indices must be from 0 to {end - 1}, not {indices.tolist()}")
        self._entries.append(
            (where.ravel() + (self.row_count - count), which.ravel(), what.ravel())
        )
        return made

    def solve(
        self,
        *,
        relax: bool = False,
        time_limit_seconds: float = math.inf,
        node_limit: int | None = None,
        relative_gap: float = 1e-6,
        absolute_gap: float = 0.0,
        start: ArrayLike | None = None,
        fixed: tuple[ArrayLike, ArrayLike] | None = None,
        quick: bool = False,
    ) -> Solution:
        """The cheapest solution.

        Args:
            relax: integer columns may be fractions (the linear relaxation).
            node_limit: of the branch-and-bound tree.
            relative_gap, absolute_gap: when to stop: as a share of the objective, or in its unit.
            start: a feasible solution to begin with; one that is not is ignored.
            fixed: columns and the values that they must have; the bound holds for these alone.
            quick: without the heuristic that takes longest at the root.

        Raises MemtradeError where a value is no number.
        """
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", 0)
        solver.setOptionValue("mip_rel_gap", relative_gap)
        solver.setOptionValue("mip_abs_gap", absolute_gap)
        if math.isfinite(time_limit_seconds):
            solver.setOptionValue("time_limit", float(time_limit_seconds))
        if node_limit is not None:
            solver.setOptionValue("mip_max_nodes", node_limit)
        if quick:
            solver.setOptionValue("mip_heuristic_run_root_reduced_cost", False)
        program, integer = self._program(relax, fixed)
        solver.passModel(program)
        if start is not None:
            given = highspy.HighsSolution()
            given.col_value = np.asarray(start, float).tolist()
            given.value_valid = True
            solver.setSolution(given)
        solver.run()
        return _read(solver, np.array(program.col_cost_), integer)

    def solve_near_relaxation(
        self, *, time_limit_seconds: float, relative_gap: float, absolute_gap: float
    ) -> Solution:
        """A solution as cheap as `solve` finds with these limits, sooner where rounding is easy.

        What is whole in the linear relaxation stays as it is, and the few columns that are not are
        solved for (RENS: T. Berthold, "RENS - the optimal rounding", Math. Prog. Comp. 6, 2014).
        The whole model is solved where too many are not, or where the outcome is not close enough
        to the relaxation's cost, which bounds that of any solution.
        """
        deadline = time.monotonic() + time_limit_seconds
        relaxed = self.solve(relax=True, time_limit_seconds=time_limit_seconds)
        if relaxed.status != "optimal":
            unknown = Solution("unknown", np.empty(0), math.inf, -math.inf)
            return unknown if relaxed.found else relaxed
        nearest = np.rint(relaxed.values)
        whole = np.flatnonzero(self._integer & (abs(relaxed.values - nearest) < _WHOLE))
        many = int(self._integer.sum())
        start = None
        if len(whole) >= _MOSTLY * many or many >= _LARGE:
            near = self.solve(
                time_limit_seconds=max(0.0, deadline - time.monotonic()),
                node_limit=1,
                relative_gap=relative_gap / 2,
                absolute_gap=absolute_gap / 2,
                fixed=(whole, nearest[whole]),
                quick=True,
            )
            missed = near.objective - relaxed.objective
            if near.found and missed <= max(absolute_gap, relative_gap * abs(near.objective)):
                return replace(near, status="optimal", bound=relaxed.objective)
            start = near.values if near.found else None
        best = self.solve(
            time_limit_seconds=max(0.0, deadline - time.monotonic()),
            relative_gap=relative_gap,
            absolute_gap=absolute_gap,
            node_limit=_NODES,
            start=start,
            quick=True,
        )
        return replace(best, bound=max(relaxed.objective, best.bound))

    @property
    def _integer(self) -> NDArray[np.bool_]:
        return np.concatenate([np.empty(0, bool), *(block[3] for block in self._columns)])

    def _program(
        self, relax: bool, fixed: tuple[ArrayLike, ArrayLike] | None
    ) -> tuple[highspy.HighsLp, NDArray[np.bool_]]:
        """The model as HiGHS takes it, and which columns are integer."""
        cost = np.concatenate([np.empty(0), *(block[0] for block in self._columns)])
        lower = np.concatenate([np.empty(0), *(block[1] for block in self._columns)])
        upper = np.concatenate([np.empty(0), *(block[2] for block in self._columns)])
        integer = self._integer & (not relax)
        if fixed is not None:
            columns = np.asarray(fixed[0], np.int64)
            lower[columns] = upper[columns] = np.asarray(fixed[1], float)
        starts, index, value = self._matrix()
        if any(np.isnan(values).any() for values in (cost, lower, upper, value)):
            raise MemtradeError("a model is made of numbers, but one of its values is none (nan)")
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.column_count, self.row_count
        program.col_cost_, program.col_lower_, program.col_upper_ = cost, lower, upper
        program.row_lower_ = np.concatenate([np.empty(0), *(low for low, _ in self._rows)])
        program.row_upper_ = np.concatenate([np.empty(0), *(high for _, high in self._rows)])
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = starts
        program.a_matrix_.index_ = index
        program.a_matrix_.value_ = value
        if integer.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            program.integrality_ = [kinds[i] for i in integer.tolist()]
        return program, integer

    def _matrix(self) -> tuple[Indices, Indices, Floats]:
        """The entries row by row, those of one place added up: starts, columns, values."""
        if not self._entries:
            return np.zeros(self.row_count + 1, np.int64), np.empty(0, np.int64), np.empty(0)
        rows = np.concatenate([block[0] for block in self._entries])
        columns = np.concatenate([block[1] for block in self._entries])
        values = np.concatenate([block[2] for block in self._entries])
        places, where = np.unique(rows * self.column_count + columns, return_inverse=True)
        summed = np.zeros(len(places))
        np.add.at(summed, where, values)
        counts = np.bincount(places // self.column_count, minlength=self.row_count)
        return np.concatenate([[0], np.cumsum(counts)]), places % self.column_count, summed


def _read(solver: highspy.Highs, cost: Floats, integer: NDArray[np.bool_]) -> Solution:
    status, info = solver.getModelStatus(), solver.getInfo()
    none = np.empty(0)
    if status == _STATUS.kInfeasible:
        return Solution("infeasible", none, math.inf, math.inf)
    if status in (_STATUS.kUnbounded, _STATUS.kUnboundedOrInfeasible):
        return Solution("unbounded", none, math.inf, -math.inf)
    bound = info.mip_dual_bound if integer.any() else -math.inf
    feasible = highspy.SolutionStatus.kSolutionStatusFeasible
    if status not in (_STATUS.kOptimal, *_STOPPED) or info.primal_solution_status != feasible:
        return Solution("unknown", none, math.inf, bound)
    values = np.array(solver.getSolution().col_value, dtype=float)
    values[integer] = np.round(values[integer])
    objective = float(cost @ values)
    if status != _STATUS.kOptimal:
        return Solution("feasible", values, objective, bound)
    return Solution("optimal", values, objective, bound if integer.any() else objective)
