"""Records: one JSON file per trial, which every table, plot and report reads.

A record's id is a hash of what makes the trial this trial: the model and its options, the
optimizer, the strategy and its options, the device and its limit, the steps, and of the machine
what can change a figure: the source of memtrade and the version of TensorFlow, the CPU and its
features, its threads, and the variables that choose kernels. The same trial run again replaces its
record. An id is made once and never again: older ones knew less.
"""

import contextlib
import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import msgspec
import pandas as pd

from memtrade.errors import MemtradeError, reason_of
from memtrade.files import write_whole
from memtrade.measure.host import Machine, describe_machine
from memtrade.measure.protocol import (
    Corrected,
    Measured,
    Outcome,
    PlanSummary,
    Runtime,
    Status,
    TrialSpec,
)
from memtrade.models import MODELS, make_model, options_of
from memtrade.simulate.predict import Predicted
from memtrade.strategies import STRATEGIES, make_options

SCHEMA_VERSION = 1

# How the files begin that are no trials' records: those of searches for the largest batch
# (`max_batch.py`) and of pipelined trials (`pipeline/measure/trial.py`).
MAX_BATCH_PREFIX, PIPELINE_PREFIX = "max-batch_", "pipeline_"

Kind = TypeVar("Kind", bound="AnyRecord")

# Model options that every frame and table shows in a column of its own.
SIZE_OPTIONS = ("batch_size", "layers", "image_size")

# What options of strategies were by default that older records have and the target says today.
RETIRED_OPTIONS = {"device": "arena"}


class DamagedRecordWarning(UserWarning):
    """A file in a folder of records that is not a record; it was left out."""


class LaterPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What another version of memtrade said of a trial after it had run.

    Attributes:
        version: of memtrade. created: UTC, ISO 8601.
    """

    version: str
    created: str
    predicted: Predicted


class AnyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What all records begin with.

    Attributes:
        prefix: of the files of its kind.
        id: of the trial or search, see above.
        created: UTC, ISO 8601.
        command: what was typed, without the paths of the machine.
        model: the model's display name ("resnet-50").
    """

    prefix: ClassVar[str] = ""

    schema_version: int
    id: str
    created: str
    command: str
    model: str
    machine: Machine

    @property
    def filename(self) -> str:
        """Of its words, whatever characters they are made of."""
        words = [re.sub(r"[^\w.-]+", "-", part) for part in (*self.words, self.id) if part]
        return f"{self.prefix}{'_'.join(words)}.json"

    @classmethod
    def made_now(
        cls, step: Any, identity: tuple[Any, ...], /, *, command: str, **fields: Any
    ) -> Self:
        """The record of what ends now, on this machine.

        Args:
            step: what has the model's name and options.
            identity: what of it is part of the id.
            fields: that only records of this kind have.
        """
        machine = describe_machine()
        return cls(
            schema_version=SCHEMA_VERSION,
            id=record_id(identity, machine),
            created=now(),
            command=command,
            model=make_model(step.model, step.model_options).name,
            machine=machine,
            **fields,
        )

    @classmethod
    def load(cls, folder: str | Path) -> list[Self]:
        """All records of the kind in a folder and its subfolders, in the order of their file names.

        A file that is not a record of this schema is left out, with a `DamagedRecordWarning` that
        names it and says why. Raises MemtradeError where there is no such folder.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise MemtradeError(f"there is no folder of records {str(folder)!r}")
        records = []
        for path in sorted(folder.rglob("*.json")):
            others = (MAX_BATCH_PREFIX, PIPELINE_PREFIX)
            if next(filter(path.name.startswith, others), "") != cls.prefix:
                continue
            try:
                records.append(_decoded(path, cls))
            except (OSError, ValueError) as error:  # msgspec.DecodeError is a ValueError
                message = f"left out {path}, which is not a record: {reason_of(error)}"
                warnings.warn(message, DamagedRecordWarning, stacklevel=2)
        return records

    @property
    def words(self) -> tuple[str, ...]:
        """What the file is called after, before the id."""
        return (self.model,)


class Record(AnyRecord, frozen=True, kw_only=True):
    """One finished trial, whichever way it ended.

    Attributes:
        reason: why `status` is not "ok", in one line.
        jobs: up to how many trials ran on the machine at a time, this one included. Above 1, they
            disturbed each other's times.
        predicted: what the simulator said of the same plan before it ran, with the profile of the
            same name as the device; None if the child ended before that. Never replaced: it is of
            the version that ran.
        corrections: plans that broke their budget, and what was learned of each; `predicted` is of
            the plan that stood in the end, and was made before that one ran.
        later: predictions that were made afterwards, oldest first.
        plan: None if the child ended before it had planned.
        runtime: None if the child ended before TensorFlow was set up.
    """

    spec: TrialSpec
    status: Status
    reason: str = ""
    jobs: int = 1
    measured: Measured | None = None
    predicted: Predicted | None = None
    corrections: tuple[Corrected, ...] = ()
    later: tuple[LaterPrediction, ...] = ()
    plan: PlanSummary | None = None
    runtime: Runtime | None = None

    @property
    def shown_prediction(self) -> Predicted | None:
        """What was said before the step ran. Of a trial that ran when there were no predictions
        yet, the first one that was made of it; `predicted_by` names its version, views mark it."""
        if self.predicted is None and self.later:
            return self.later[0].predicted
        return self.predicted

    @property
    def predicted_by(self) -> str | None:
        """The version that made a prediction which is shown although it came after the run."""
        return self.later[0].version if self.predicted is None and self.later else None

    @property
    def newest_prediction(self) -> Predicted | None:
        return self.later[-1].predicted if self.later else self.predicted

    @property
    def peak_error(self) -> float | None:
        """The error of the predicted peak that is shown, as a share of the measured one."""
        predicted = self.shown_prediction
        if self.measured is None or predicted is None:
            return None
        return predicted.peak_bytes / self.measured.peak_bytes - 1

    @property
    def words(self) -> tuple[str, ...]:
        batch = self.spec.model_options.get("batch_size", "")
        return self.model, f"b{batch}" if batch else "", self.spec.strategy


def now() -> str:
    """As records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_record(spec: TrialSpec, outcome: Outcome, *, command: str) -> Record:
    """The record of a trial that ends now, on this machine."""
    said = {k: v for k, v in vars(outcome).items() if k in Record.__struct_fields__}
    bare = msgspec.structs.replace(spec, known_folder=None)
    return Record.made_now(spec, _identity(spec), command=command, spec=bare, **said)


# What a trial is told, and is the same trial without.
_ASIDE = frozenset({"known_folder", "leaves_margin"})


def trial_id(spec: TrialSpec, machine: Machine) -> str:
    """12 hexadecimal digits; a saved plan counts by its contents, not by its path."""
    return record_id(_identity(spec), machine)


def _identity(spec: TrialSpec) -> tuple[Any, ...]:
    plan = b""
    if spec.plan_path is not None:
        with contextlib.suppress(OSError):
            plan = Path(spec.plan_path).read_bytes()
    asked = msgspec.structs.asdict(msgspec.structs.replace(spec, plan_path=None, graph_path=None))
    told = {name: value for name, value in asked.items() if name not in _ASIDE}
    return told, hashlib.sha256(plan).hexdigest()


def record_id(identity: tuple[Any, ...], machine: Machine) -> str:
    """12 hexadecimal digits of what makes a record another than the next, on that machine."""
    known = (SCHEMA_VERSION, *identity, *machine.identity)
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()[:12]


def save_record(record: AnyRecord, folder: Path) -> Path:
    """Writes the record, whole or not at all, and returns its path.

    Raises:
        MemtradeError: the folder cannot be written to.
    """
    path = folder / record.filename
    text = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"
    try:
        write_whole(path, text)
    except OSError as error:
        raise MemtradeError(f"cannot write the record {path}: {error.strerror}") from error
    return path


def load_records(folder: str | Path) -> list[Record]:
    """All trials' records of a folder; see `AnyRecord.load`."""
    return Record.load(folder)


def _decoded(path: Path, kind: type[Kind]) -> Kind:
    record = msgspec.json.decode(path.read_bytes(), type=kind)
    if record.schema_version != SCHEMA_VERSION:
        version = f"schema version {record.schema_version}, not {SCHEMA_VERSION}"
        raise ValueError(f"{version}: another version of memtrade wrote it")
    return record


def load_record(path: Path) -> Record:
    """One trial's record.

    Raises:
        MemtradeError: the file cannot be read, or is no record of this schema.
    """
    try:
        return _decoded(path, Record)
    except OSError as error:
        raise MemtradeError(f"cannot read the record {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise MemtradeError(f"{path.name} is not the record of a trial: {error}") from error


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, units in the columns' names. What a trial does not have is missing.

    Measured figures stand under their own names (`peak_bytes`, `median_seconds`, ...), predicted
    ones under `predicted_...`. `model_options` and `strategy_options` are text, "key=value ...",
    of what is neither the default nor a column of its own (`SIZE_OPTIONS`).
    """
    rows = [_row(record) for record in records]
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return frame.astype(_COLUMNS)


# In their order, with their types.
_COLUMNS = {
    name: dtype
    for dtype, names in (
        ("str", "id created model"),
        ("Int64", " ".join(SIZE_OPTIONS)),
        ("str", "model_options optimizer strategy strategy_options order device"),
        ("Int64", "memory_limit_bytes steps"),
        ("str", "status reason"),
        ("Int64", "jobs peak_bytes persistent_bytes memory_cost_bytes host_bytes"),
        ("Float64", "median_seconds fastest_seconds slowest_seconds"),
        ("Float64", "trace_seconds plan_seconds rewrite_seconds"),
        ("str", "predicted_device_profile"),
        ("Int64", "predicted_peak_bytes predicted_persistent_bytes predicted_memory_cost_bytes"),
        ("Int64", "predicted_host_bytes"),
        ("boolean", "predicted_fits"),
        ("Float64", "predicted_step_seconds predicted_stall_seconds"),
        ("Int64", "kept recomputed swapped kept_bytes recomputed_bytes swapped_bytes"),
        ("Int64", "clones actions ops_added"),
        ("str", "memtrade_version tensorflow_version python_version platform cpu_model"),
        ("Int64", "cores memory_bytes"),
        ("str", "command"),
    )
    for name in names.split()
}


def _row(record: Record) -> dict[str, Any]:
    spec = record.spec
    row = {
        **_fields(record.measured),
        **{f"predicted_{key}": value for key, value in _fields(record.shown_prediction).items()},
        **_fields(record.plan),
        **_fields(record.machine),
        **_fields(spec),
        **_fields(record),
        **{name: spec.model_options.get(name) for name in SIZE_OPTIONS},
        "model_options": options_text(unusual_model_options(spec)),
        "strategy_options": options_text(unusual_strategy_options(spec)),
    }
    return {name: row.get(name) for name in _COLUMNS}


def _fields(struct: msgspec.Struct | None) -> dict[str, Any]:
    return {} if struct is None else msgspec.structs.asdict(struct)


def unusual_model_options(spec: TrialSpec) -> dict[str, Any]:
    """The model's options that are not the default, not in `SIZE_OPTIONS`, and not in its name."""
    model = MODELS[spec.model]
    said = (*SIZE_OPTIONS, model.variant_option)
    unusual = _unusual(spec.model_options, model)
    return {name: value for name, value in unusual.items() if name not in said}


def unusual_strategy_options(spec: TrialSpec) -> dict[str, Any]:
    """The strategy's options that are not the default."""
    strategy = STRATEGIES.get(spec.strategy)  # a saved plan may be of a strategy of one's own
    return _unusual(spec.strategy_options, strategy.options if strategy else None)


def _unusual(options: Mapping[str, Any], declared: type | None) -> dict[str, Any]:
    defaults: dict[str, Any] = dict(RETIRED_OPTIONS)
    if declared:
        defaults |= {each.name: each.default for each in options_of(declared)}
    return {name: value for name, value in options.items() if value != defaults.get(name)}


def planned_options(spec: TrialSpec) -> Any:
    """The options of a record's strategy, as that strategy takes them today."""
    given = {k: v for k, v in spec.strategy_options.items() if k not in RETIRED_OPTIONS}
    return make_options(spec.strategy, given)


def options_text(options: Mapping[str, Any]) -> str:
    """Options as a command line gives them.

    >>> options_text({"lb": 1, "fuse_swapins": True})
    'lb=1 fuse_swapins=true'
    """
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    )
