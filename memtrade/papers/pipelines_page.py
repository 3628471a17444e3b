"""A comparison with published figures as a Markdown page: how far off, and every row."""

import itertools
from collections.abc import Callable
from typing import Any

from memtrade.papers.pages import page_text
from memtrade.papers.pipelines import SLACK, Compared
from memtrade.papers.published import lines
from memtrade.results.sheets import Sheet, cell
from memtrade.units import megabytes

Column = tuple[str, Callable[[dict[str, Any]], str]]

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
        if errors.empty:
            continue
        sizes = errors.abs()
        rows.append(
            (
                _QUANTITIES[name], str(by), str(len(errors)), f"{sizes.median():.1%}",
                f"{sizes.max():.1%}", f"{errors.median():+.1%}",
                *(f"{(sizes <= most).mean():.0%}" for most in (0.1, 0.25)),
            )
        )  # fmt: skip
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


def errors_of(frame: Any, name: str) -> Any:
    """Predicted over published less 1, of the rows where that is a prediction.

    Left out: rows without the figure, rows that the rates were fitted to, and of relative figures
    the row that the others are related to.
    """
    published, predicted = (frame[f"{side}_{name}"] for side in ("published", "predicted"))
    fitted = frame["calibrated"] & ("samples_per_second" in name)
    reference = (published == 1) & name.startswith("relative")
    counted = published.notna() & ~fitted & ~reference
    return (predicted[counted] / published[counted] - 1).astype(float)


def _rows(compared: Compared, command: str) -> Sheet:
    frame: Any = compared.frame
    related = compared.comparison.relative
    shown = [
        name
        for name in _QUANTITIES
        if not name.startswith("relative") and frame[f"published_{name}"].notna().any()
    ]
    columns: list[Column] = [
        ("run", lambda it: f"{it['run']}{'*' if it['calibrated'] else ''}"),
        ("model", lambda it: f"{it['model']} {it['size']}".strip()),
        ("by", lambda it: it["implementation"]),
        ("stages", lambda it: str(it["partitions"])),
        ("micro-batches", lambda it: f"{it['micro_batches']:,} of {it['micro_batch_size']}"),
        ("checkpoint", lambda it: it["checkpoint"]),
    ]
    words = len(columns)
    for name in shown:
        columns += _columns(name)
    if related is not None:
        what = _QUANTITIES[related].removesuffix(" memory")
        three = "{:.3f}".format
        columns += [
            (
                f"relative {what}: published",
                lambda it: cell(three, it[f"published_relative_{related}"]),
            ),
            ("predicted", lambda it: cell(three, it[f"predicted_relative_{related}"])),
        ]
    return Sheet.of(lines(frame), columns, title="Every row", words=words, command=command)


def _columns(name: str) -> list[Column]:
    """Of one quantity, published, predicted and the error; beside the one that is not fused, one
    that is says nothing new of what was published."""
    speed = name == "samples_per_second"

    def text(value: float) -> str:
        return f"{value:,.1f}" if speed else megabytes(round(value))

    def error(it: dict[str, Any]) -> str:
        given = it[f"published_{name}"]
        return cell(lambda given: f"{it[f'predicted_{name}'] / given - 1:+.1%}", given)

    what = f"{_QUANTITIES[name].replace(' memory', '')}{'/s' if speed else ' MB'}"
    fused = name.startswith("fused")
    found: list[Column] = [
        (f"{what}: published", lambda it: cell(text, it[f"published_{name}"])),
        ("predicted, fused" if fused else "predicted", lambda it: text(it[f"predicted_{name}"])),
        ("error", error),
    ]
    return found[1:] if fused else found
