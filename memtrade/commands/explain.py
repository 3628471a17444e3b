"""`memtrade explain`: why memory ran out, and what would fit."""

import shlex
import sys
from pathlib import Path

import msgspec

from memtrade.commands.profiles import foresee
from memtrade.commands.progress import asking, extract_graph, reporting
from memtrade.commands.screen import show_json, stdout
from memtrade.errors import MemtradeError
from memtrade.explain.cause import of_error, of_step
from memtrade.explain.error import Failure, read_failure
from memtrade.explain.remedy import Remedy, remedy_for
from memtrade.graph import StepGraph
from memtrade.measure import flags, records
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.flags import DeviceFlags, Flag, ModelFlags, StepFlags, StrategyFlags, Verbose
from memtrade.measure.here import GENERIC, here_target, learned_target
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, load_record, planned_options
from memtrade.models import MODELS
from memtrade.models.target import OwnStep
from memtrade.plan import Plan
from memtrade.results.explanation import Page
from memtrade.results.words import status_text, step_text
from memtrade.simulate.by_layer import By
from memtrade.strategies import NATIVE, find_planned
from memtrade.target import ARENA, Target, profile_target


def explain(
    record: Path | None = None,
    *,
    error: Path | None = None,
    model: ModelFlags | None = None,
    strategy: StrategyFlags | None = None,
    device: DeviceFlags | None = None,
    by: By | None = None,
    json: Flag = False,
    verbose: Verbose = False,
) -> int:
    """Explain on one page why memory ran out, and what would fit.

    Of a trial's record, or of an error text from elsewhere. Which op, layer and line asked for how
    much; what held the rest; need, a batch too large, scratch or fragmentation; the nearest plan
    that fits. Nothing is run: the step is traced and simulated. Unless --strategy is given, the
    step is as it came.

    Parameters
    ----------
    record
        The record of a trial that ran out of memory, as `memtrade run` writes it.
    error
        A file with the error as TensorFlow printed it, and its log if there is one; - is stdin.
        With the step (--model or --target, --batch-size) and the --device it is simulated, too.
    by
        What held the rest: by layer, unless told, or by source, the line of the program.
    json
        Print the explanation to stdout as JSON, and no page.
    """
    if (record is None) == (error is None):
        one = "a record and --error both say what ran out of memory: give one of them"
        none = "name the record of a trial, or a file with an error by --error"
        raise MemtradeError(one if record else none)
    if record is not None:
        if model is not None or strategy is not None or device is not None:
            raise MemtradeError("a record says its step, strategy and device: leave the flags out")
        page = _of_record(load_record(record), by or "layer", verbose)
    else:
        assert error is not None
        failure = read_failure(_read(error))
        page = Page(of_error(failure))
        if model is not None:
            with_what, on_what = strategy or StrategyFlags(), device or DeviceFlags()
            step = StepFlags(model=model, strategy=with_what, device=on_what)
            page = _of_error(failure, step, by or "layer", verbose)
        elif strategy is not None or device is not None or by is not None:
            raise MemtradeError(
                "--strategy, --device and --by are of the step: name it, with --model or --target "
                "and --batch-size, or leave them out"
            )
    if json:
        show_json({name: getattr(page, name) for name in ("explanation", "remedy", "command")})
    else:
        stdout().print(page.to_rich())
    return 0


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(errors="replace")
    except OSError as error:
        raise MemtradeError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _of_record(record: Record, by: By, verbose: bool) -> Page:
    spec = record.spec
    if record.status != "out_of_memory":
        raise MemtradeError(
            f"this trial did not run out of memory: {status_text(record.status)}. "
            "`memtrade table` shows what it measured"
        )
    try:
        failure = read_failure(record.reason)
    except MemtradeError:
        failure = None  # "no room to swap in ..."
    if spec.strategy in NATIVE or spec.plan_path is not None:
        return Page(of_error(failure or Failure()))
    tracing = msgspec.structs.replace(
        spec, task="extract", device=ARENA, memory_limit_bytes=default_limit_bytes()
    )
    graph = extract_graph(tracing, timeout_seconds=DeviceFlags().timeout, verbose=verbose)
    target = _target_of(record)
    with reporting() as reporter:
        target = learned_target(target, [graph], on_progress=asking(reporter, target.name))
        reporter.trial(1, 1, spec.strategy, phase="plan")
        plan = find_planned(spec.strategy).plan(graph, planned_options(spec), target)
    return _page(spec, graph, target, plan, failure, by)


def _target_of(record: Record) -> Target:
    spec, predicted = record.spec, record.shown_prediction
    if spec.device == ARENA:
        return here_target(ARENA, order=spec.order, limit_bytes=spec.memory_limit_bytes)
    profile = (predicted and predicted.device_profile) or GENERIC
    return profile_target(profile, order=spec.order, limit_bytes=spec.memory_limit_bytes)


def _of_error(failure: Failure, step: StepFlags, by: By, verbose: bool) -> Page:
    names = step.strategy.names(("original",))
    if len(names) > 1:
        raise MemtradeError(f"one strategy ran out of memory: choose one of {', '.join(names)}")
    found = foresee(step, default=("original",), verbose=verbose)
    [spec] = found.specs
    return _page(spec, found.graph, found.target, found.plan(spec), failure, by)


def _page(
    spec: TrialSpec, graph: StepGraph, target: Target, plan: Plan, failure: Failure | None, by: By
) -> Page:
    step = f"{step_text(spec)}, {spec.strategy}"
    found = of_step(step, graph, target, plan=plan, failure=failure, by=by)
    with reporting() as reporter:
        reporter.trial(1, 1, spec.strategy, phase="plan")
        remedy = remedy_for(found, graph, target)
    if not isinstance(remedy, Remedy):
        return Page(found, remedy)
    command = command_of(spec, remedy, found.limit_bytes)
    return Page(found, remedy, command=command, python=remedy.python)


def command_of(spec: TrialSpec, remedy: Remedy, limit_bytes: int) -> str:
    """What runs the step of `spec` by the remedy's plan."""
    options, kind = spec.model_options, MODELS[spec.model]
    variant = options.get(kind.variant_option, "") if kind.variant_option else ""
    if spec.model == OwnStep.family:
        words = ["--target", str(variant)]
    else:
        words = ["--model", f"{spec.model}/{variant}" if variant else spec.model]
    for name in records.SIZE_OPTIONS:
        if options.get(name) is not None and name != kind.variant_option:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    for name, value in records.unusual_model_options(spec).items():
        words += ["--model-option", f"{name}={value}"]
    if spec.optimizer != flags.OWN_OPTIMIZER:
        words += ["--optimizer", spec.optimizer]
    words += ["--memory-limit", f"{limit_bytes >> 20}MiB", "--strategy", remedy.strategy]
    if remedy.budget_bytes:
        words += ["--budget", f"{remedy.budget_bytes >> 20}MiB"]
    return shlex.join(["memtrade", "run", *words])
