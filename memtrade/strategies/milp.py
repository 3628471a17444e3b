"""A thin wrapper over HiGHS: minimise a linear cost under linear rows, some columns being integer.

    minimise    cost . x
    subject to  lower <= A x <= upper  for each row,  lower <= x <= upper  for each column

Entries of the same row and column add up.

    >>> model = Milp()
    >>> x = model.columns(3, cost=[1, 2, 3], upper=1, integer=True)
    >>> _ = model.row(zip(x, [4, 3, 2]), at_least=5)
    >>> model.solve().values.tolist()
    [1.0, 1.0, 0.0]

HiGHS runs on one thread with a fixed seed, and what ends it is counted (`node_limit`), so the same
model has the same solution on every machine, idle or busy. The clock only cancels (`Deadline`).
Nothing is printed.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from memtrade.errors import MemtradeError
from memtrade.strategies.deadline import CancelledError, Deadline

SolverStatus = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

_STATUS = highspy.HighsModelStatus
# What these leave behind is a solution if there is one, but nothing is proven.
_STOPPED = frozenset({_STATUS.kIterationLimit, _STATUS.kSolutionLimit})
# A value so close to a whole number is one.
_WHOLE = 1e-6
# A model of so few integer columns is solved as a whole where rounding is not close enough, and its
# tree cut off after so many nodes: its best solution is found long before.
_SMALL = 300
_NODES = 50
_NEVER = Deadline(math.inf)


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

    status: SolverStatus
    values: Floats
    objective: float
    bound: float

    @property
    def found(self) -> bool:
        return self.status in ("optimal", "feasible")


class Milp:
    """Columns, in blocks, and rows, one by one, collected until `solve`."""

    def __init__(self) -> None:
        self.column_count = 0
        self._columns: list[tuple[Floats, Floats, Floats, NDArray[np.bool_]]] = []
        self._bounds: list[tuple[float, float]] = []  # of the rows
        self._entries: list[tuple[int, int, float]] = []  # row, column, value

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
        cost, lower, upper = (np.full(count, value, float) for value in (cost, lower, upper))
        self._columns.append((cost, lower, upper, np.full(count, integer, bool)))
        self.column_count += count
        return np.arange(self.column_count - count, self.column_count)

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
    ) -> int:
        """Adds a row of (column, value), and returns its index."""
        index = len(self._bounds)
        self._entries += [(index, column, value) for column, value in terms]
        self._bounds.append((at_least, at_most))
        return index

    def solve(
        self, *, relax: bool = False, node_limit: int | None = None, relative_gap: float = 1e-6
    ) -> Solution:
        """The cheapest solution.

        Args:
            relax: integer columns may be fractions (the linear relaxation).
            node_limit: of the branch-and-bound tree.
            relative_gap: when to stop, as a share of the objective.

        Raises MemtradeError where a value is no number, IndexError for a column that was not added.
        """
        solver = _solver(relative_gap, node_limit=node_limit)
        program, integer = self._program(relax)
        solver.passModel(program)
        return _run(solver, np.array(program.col_cost_), integer, _NEVER)

    @property
    def _integer(self) -> NDArray[np.bool_]:
        return np.concatenate([np.empty(0, bool), *(block[3] for block in self._columns)])

    def _program(self, relax: bool) -> tuple[highspy.HighsLp, NDArray[np.bool_]]:
        """The model as HiGHS takes it, and which columns are integer."""
        cost, lower, upper = (
            np.concatenate([np.empty(0), *(block[i] for block in self._columns)]) for i in range(3)
        )
        integer = self._integer & (not relax)
        starts, index, value = self._matrix()
        if any(np.isnan(values).any() for values in (cost, lower, upper, value)):
            raise MemtradeError("a model is made of numbers, but one of its values is none (nan)")
        at_least, at_most = np.array(self._bounds, float).reshape(-1, 2).T
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.column_count, len(self._bounds)
        program.col_cost_, program.col_lower_, program.col_upper_ = cost, lower, upper
        program.row_lower_, program.row_upper_ = at_least, at_most
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = starts
        program.a_matrix_.index_ = index
        program.a_matrix_.value_ = value
        if integer.any():
            program.integrality_ = _kinds(integer)
        return program, integer

    def _matrix(self) -> tuple[Indices, Indices, Floats]:
        """The entries row by row, those of one place added up: starts, columns, values."""
        rows, columns, values = np.array(self._entries, float).reshape(-1, 3).T
        if columns.size and not 0 <= columns.min() <= columns.max() < self.column_count:
            raise IndexError(f"columns must be from 0 to {self.column_count - 1}")
        places, where = np.unique(
            (rows * self.column_count + columns).astype(np.int64), return_inverse=True
        )
        summed = np.zeros(len(places))
        np.add.at(summed, where, values)
        counts = np.bincount(places // max(self.column_count, 1), minlength=len(self._bounds))
        starts = np.concatenate([[0], np.cumsum(counts)])
        return starts, places % max(self.column_count, 1), summed


class NearRelaxation:
    """Solutions about as cheap as `Milp.solve` finds, sooner, for one model with changing bounds.

    What is whole in the linear relaxation stays as it is, and what is not is solved for (RENS: T.
    Berthold, "RENS - the optimal rounding", Math. Prog. Comp. 6, 2014). Columns that decide one
    thing are a group, and stay or are solved for together: alone, they have nowhere to go. Where
    the outcome is not close enough to the relaxation's cost, which bounds that of any solution,
    the groups beside them are solved for, too; at last, in a small model, all.

    The relaxation is solved without presolving: that takes no longer, leaves fewer columns that are
    not whole, and the next one, with other bounds, starts where this one ended: some 20 pivots in
    place of thousands.

    Args:
        groups: of integer columns; a column may be in several.
        beside: for each group, the groups that it is solved for with.
    """

    def __init__(
        self,
        model: Milp,
        groups: Sequence[Sequence[int]],
        beside: Sequence[Collection[int]],
        deadline: Deadline = _NEVER,
    ):
        program, _ = model._program(relax=True)
        self._integer, self._deadline = model._integer, deadline
        self._groups, self._beside = groups, beside
        self._cost = np.array(program.col_cost_)
        self._relaxed = _solver()
        self._relaxed.setOptionValue("presolve", "off")
        self._relaxed.passModel(program)

    def raise_rows(self, more: Mapping[int, float]) -> None:
        """Rows whose lower bounds rise by that much."""
        program = self._relaxed.getLp()
        lower, upper = program.row_lower_, program.row_upper_
        for row, value in more.items():
            self._relaxed.changeRowBounds(row, lower[row] + value, upper[row])

    def limit_column(self, column: int, upper: float) -> None:
        self._relaxed.changeColBounds(column, 0.0, upper)

    def least(self, column: int) -> float:
        """What no solution has less of in a column."""
        indices = np.arange(len(self._cost), dtype=np.int32)
        alone = (indices == column).astype(float)
        self._relaxed.changeColsCost(len(indices), indices, alone)
        least = self._relax(alone).objective
        self._relaxed.changeColsCost(len(indices), indices, self._cost)
        return least

    def relax(self) -> Solution:
        """The relaxation's solution: some integer columns are fractions."""
        return self._relax(self._cost)

    def _relax(self, cost: Floats) -> Solution:
        return _run(self._relaxed, cost, np.zeros(len(cost), bool), self._deadline)

    def solve(self, *, relative_gap: float, absolute_gap: float, thorough: bool = True) -> Solution:
        """A solution within one of the gaps, or the best that was found.

        Args:
            thorough: also look beside the groups that are not whole, where that is needed.
        """
        relaxed = self.relax()
        if relaxed.status != "optimal":
            return relaxed
        best = Solution("unknown", np.empty(0), math.inf, relaxed.objective)
        for free in self._neighbourhoods(relaxed.values):
            near = self._solve_near(relaxed.values, free, relative_gap / 2, absolute_gap / 2, best)
            if near.objective < best.objective:
                bound = relaxed.objective if not free.all() else near.bound
                best = replace(near, bound=max(best.bound, bound))
            missed = best.objective - relaxed.objective
            close = missed <= max(absolute_gap, relative_gap * abs(best.objective))
            if close or (best.found and not thorough):
                break
        return best

    def _neighbourhoods(self, values: Floats) -> Iterator[NDArray[np.bool_]]:
        """Which columns are solved for, first and later."""
        broken = self._integer & (abs(values - np.rint(values)) >= _WHOLE)
        groups = {g for g, columns in enumerate(self._groups) if broken[list(columns)].any()}
        yield broken | self._columns_of(groups)
        groups.update(*(self._beside[g] for g in groups))
        yield broken | self._columns_of(groups)
        if self._integer.sum() <= _SMALL:
            yield np.ones_like(broken)

    def _columns_of(self, groups: Iterable[int]) -> NDArray[np.bool_]:
        chosen = np.zeros(len(self._cost), bool)
        chosen[[column for g in groups for column in self._groups[g]]] = True
        return chosen

    def _solve_near(
        self,
        values: Floats,
        free: NDArray[np.bool_],
        relative_gap: float,
        absolute_gap: float,
        start: Solution,
    ) -> Solution:
        """The best solution in which integer columns that are not `free` are as in `values`."""
        solver = _solver(relative_gap, absolute_gap, _NODES if free.all() else 1)
        # At the root, this heuristic takes longer than all the rest.
        solver.setOptionValue("mip_heuristic_run_root_reduced_cost", False)
        program = self._relaxed.getLp()
        program.integrality_ = _kinds(self._integer)
        stay, nearest = self._integer & ~free, np.rint(values)
        program.col_lower_ = np.where(stay, nearest, np.array(program.col_lower_))
        program.col_upper_ = np.where(stay, nearest, np.array(program.col_upper_))
        solver.passModel(program)
        given = start.values if start.found else None
        return _run(solver, self._cost, self._integer, self._deadline, given)


def _kinds(integer: NDArray[np.bool_]) -> list[highspy.HighsVarType]:
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    return [kinds[i] for i in integer.tolist()]


def _solver(
    relative_gap: float = 0.0, absolute_gap: float = 0.0, node_limit: int | None = None
) -> highspy.Highs:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    solver.setOptionValue("mip_rel_gap", relative_gap)
    solver.setOptionValue("mip_abs_gap", absolute_gap)
    if node_limit is not None:
        solver.setOptionValue("mip_max_nodes", node_limit)
    return solver


def _run(
    solver: highspy.Highs,
    cost: Floats,
    integer: NDArray[np.bool_],
    deadline: Deadline,
    start: ArrayLike | None = None,
) -> Solution:
    deadline.check()
    if math.isfinite(deadline.seconds_left):
        # HiGHS counts the seconds of all runs of a solver.
        solver.setOptionValue("time_limit", solver.getRunTime() + deadline.seconds_left)
    if start is not None:
        given = highspy.HighsSolution()
        given.col_value = np.asarray(start, float).tolist()
        given.value_valid = True
        solver.setSolution(given)
    solver.run()
    if solver.getModelStatus() == _STATUS.kTimeLimit:
        raise CancelledError
    return _read(solver, cost, integer)


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
    if status == _STATUS.kOptimal:
        return Solution("optimal", values, objective, bound if integer.any() else objective)
    return Solution("feasible", values, objective, bound)
