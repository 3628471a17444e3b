"""A comparison with published figures as a Markdown page: how far off, and every row."""

import itertools
import statistics

import pandas as pd

from memtrade.papers.pages import page_text
from memtrade.papers.pipelines import SLACK, Compared
from memtrade.results.sheets import NONE, Sheet
from memtrade.units import megabytes

_QUANTITIES = {
    "parameter_bytes": "parameter memory",
    "activation_bytes": "activation memory",
    "fused_activation_bytes": "activation memory, fused",
    "total_bytes": "total memory",
    "fused_total_bytes": "total memory, fused",
    "samples_per_second": "throughput",
    "relative_fused_activation_bytes": "activation memory, fused, relative",
    "relative_samples_per_second": "throughput, relative",
}
_RELATIVE = (
    "relative: over the first row of the same model, size and implementation, or as printed where "
    "the source prints nothing else"
)


def to_markdown(compared: Compared, *, command: str = "") -> str:
    """The page. `command` is what made it."""
    comparison = compared.comparison
    notes = [
        f"profile {compared.device.name} ({compared.device.source})",
        f"partitions balanced by {comparison.balance} with a slack of "
        f"{SLACK:g}, GPipe's schedule, {_HOSTS[comparison.hosts]}",
        *_fit_notes(compared),
        "error: predicted over published, less 1",
        "fused: as if chains of elementwise ops were one kernel each, as more of them are in "
        "PyTorch; nothing is fitted for it. Throughputs are those of fused kernels",
        *comparison.notes,
    ]
    errors, rows = errors_sheet(compared), _rows(compared, command)
    return page_text("pipelines.md", name=comparison.name, errors=errors, notes=notes, rows=rows)


_HOSTS = {"own": "a host for each stage", "shared": "one host for all stages"}


def _fit_notes(compared: Compared) -> list[str]:
    device = compared.fitted
    if device is None:
        return ["nothing was calibrated"]
    rows = [line for line in compared.frame.to_dict("records") if line["calibrated"]]
    runs = ", ".join(f"{line['model']} {line['run']}" for line in rows)
    known = compared.frame["published_samples_per_second"].notna().sum()
    shares = ", ".join(f"{name} {share:.2f}" for name, share in device.efficiency.items())
    return [
        f"calibrated on {len(rows)} of {known} throughputs ({runs}; marked *), which "
        f"the errors above leave out. Fitted: shares of the peak rates ({shares}) and "
        f"{device.dispatch_seconds * 1e6:.0f} us for the host to start an op"
    ]


def errors_sheet(compared: Compared) -> Sheet:
    """Per quantity and implementation, how many rows are predicted how well."""
    rows = []
    groups = list(compared.frame.groupby("implementation", sort=False))
    names = [name for name in _QUANTITIES if f"published_{name}" in compared.frame]
    for name, (by, frame) in itertools.product(names, groups):
        errors = errors_of(frame, name)
        if not errors:
            continue
        sizes = [abs(error) for error in errors]
        rows.append(
            (
                _QUANTITIES[name],
                str(by),
                str(len(errors)),
                f"{statistics.median(sizes):.1%}",
                f"{max(sizes):.1%}",
                f"{statistics.median(errors):+.1%}",
                f"{statistics.fmean(size <= 0.1 for size in sizes):.0%}",
                f"{statistics.fmean(size <= 0.25 for size in sizes):.0%}",
            )
        )
    return Sheet(
        title=f"{compared.comparison.name}: how far the predictions are off",
        columns=(
            "quantity", "by", "rows", "median |error|", "largest |error|", "median error",
            "within 10%", "within 25%",
        ),
        words=2,
        rows=tuple(rows),
        notes=(_RELATIVE,) if compared.comparison.relative else (),
    )  # fmt: skip


def errors_of(frame: pd.DataFrame, name: str) -> list[float]:
    """Predicted over published less 1, of the rows where that is a prediction.

    Left out: rows without the figure, rows that the rates were fitted to, and of relative figures
    the row that the others are related to.
    """
    found = []
    for line in frame.to_dict("records"):
        published, predicted = line[f"published_{name}"], line[f"predicted_{name}"]
        fitted = "samples_per_second" in name and line["calibrated"]
        reference = name.startswith("relative") and published == 1
        if not (pd.isna(published) or fitted or reference):
            found.append(predicted / published - 1)
    return found


def _rows(compared: Compared, command: str) -> Sheet:
    frame = compared.frame
    shown = [
        name
        for name in _QUANTITIES
        if not name.startswith("relative")
        and any(not pd.isna(value) for value in frame[f"published_{name}"])
    ]
    related = compared.comparison.relative
    columns = ["run", "model", "by", "stages", "micro-batches", "checkpoint"]
    words = len(columns)
    for name in shown:
        what = _QUANTITIES[name].replace(" memory", "")
        unit = "/s" if name == "samples_per_second" else " MB"
        if name.startswith("fused"):
            columns += ["predicted, fused", "error"]
        else:
            columns += [f"{what}{unit}: published", "predicted", "error"]
    if related is not None:
        what = _QUANTITIES[related].removesuffix(" memory")
        columns += [f"relative {what}: published", "predicted"]
    rows = []
    for line in frame.to_dict("records"):
        row = [
            f"{line['run']}{'*' if line['calibrated'] else ''}",
            f"{line['model']} {line['size']}".strip(),
            line["implementation"],
            str(line["partitions"]),
            f"{line['micro_batches']:,} of {line['micro_batch_size']}",
            line["checkpoint"],
        ]
        for name in shown:
            cells = _cells(name, line[f"published_{name}"], line[f"predicted_{name}"])
            row += cells[1:] if name.startswith("fused") else cells
        if related is not None:
            both = (line[f"{side}_relative_{related}"] for side in ("published", "predicted"))
            row += [f"{value:.3f}" for value in both]
        rows.append(tuple(row))
    return Sheet(
        title="Every row",
        columns=tuple(columns),
        words=words,
        rows=tuple(rows),
        command=command,
    )


def _cells(name: str, published: float | None, predicted: float) -> list[str]:
    def text(value: float) -> str:
        return f"{value:,.1f}" if name == "samples_per_second" else megabytes(round(value))

    if published is None or pd.isna(published):
        return [NONE, text(predicted), NONE]
    return [text(published), text(predicted), f"{predicted / published - 1:+.1%}"]
