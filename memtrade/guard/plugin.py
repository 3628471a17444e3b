"""A plugin for pytest: a test that fails where a training step takes more memory than it may.

    @pytest.mark.peak_memory("500MB")
    def test_the_step(peak_memory):
        peak_memory(train_step, batch)

pytest loads it in every session, so nothing is imported here that takes time: TensorFlow comes with
the first step that is looked at.
"""

from collections.abc import Callable, Generator
from numbers import Real
from typing import Any

import pytest

from memtrade.errors import MemtradeError, sizes_apart
from memtrade.units import bytes_of, megabytes, parse_bytes

_MARKER = "peak_memory"
_PROPERTY = "memtrade peak"

# A peak may be above the marker's by this share: TensorFlow's ops and kernels change a little.
_TOLERANCE = 0.01

_checked = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memtrade", "memory of training steps")
    group.addoption(
        "--memtrade-limit",
        metavar="SIZE",
        type=_size,
        help="no step that a test hands to peak_memory may take more, such as 2GB",
    )
    group.addoption(
        "--memtrade-measure",
        action="store_true",
        help="run these steps in a process of their own, in place of predicting",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(limit, within=0.01): fail where a step that the test hands to the fixture "
        f"{_MARKER} takes more than limit, such as '500MB', by more than the share within",
    )


@pytest.fixture
def peak_memory(request: pytest.FixtureRequest) -> Callable[..., int]:
    """A function of a step and its batch that fails the test where the step takes too much.

    It takes what `memtrade.guard.peak.peak_of` takes, and returns the peak in bytes.
    """

    def check(train_step: Any, *batch: Any, **how: Any) -> int:
        from memtrade.guard.peak import peak_of

        how = {"measure": request.config.getoption("memtrade_measure"), **how}
        request.node.stash[_checked] = True
        try:
            found = peak_of(train_step, batch, **how)
        except MemtradeError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        limits = _limits(request)
        allowed = min(limits, default=None, key=lambda limit: limit[0])
        peak = f"{found.bound} {megabytes(found.size_bytes)} MB".lstrip()
        shown = f"{found.name} {peak} {found.source}"
        request.node.user_properties.append((_PROPERTY, shown))
        if allowed is not None and found.size_bytes > allowed[0]:
            pytest.fail(
                f"the peak of {found.name} is {peak} ({found.source}), "
                f"above {allowed[1]}: {found.held}",
                pytrace=False,
            )
        return found.size_bytes

    return check


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A marked test that looks at no step would hold nothing."""
    yield
    if item.get_closest_marker(_MARKER) and not item.stash.get(_checked, False):
        pytest.fail(
            f"the test is marked {_MARKER} and hands no step to the fixture {_MARKER}",
            pytrace=False,
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        f"{report.nodeid}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if lines:
        terminalreporter.section("peaks of training steps")
        for line in lines:
            terminalreporter.write_line(line)


def _limits(request: pytest.FixtureRequest) -> list[tuple[int, str]]:
    """Those that hold for a test, in bytes, and how they are told."""
    limits = []
    marker = request.node.get_closest_marker(_MARKER)
    if marker is not None:
        try:
            size, within = _limit(*marker.args, **marker.kwargs)
        except (TypeError, MemtradeError) as error:
            said = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
            why = error if isinstance(error, MemtradeError) else f"not ({', '.join(said)})"
            rule = f"the marker {_MARKER} takes a limit, such as '500MB', and within"
            pytest.fail(f"{rule}: {why}", pytrace=False)
        [limit] = sizes_apart(size)
        limits.append((int(size * (1 + within)), f"{limit} and {within:.0%}"))
    asked = request.config.getoption("memtrade_limit")
    if asked is not None:
        limits.append((asked, f"--memtrade-limit, {sizes_apart(asked)[0]}"))
    return limits


def _limit(limit: str | int, *, within: float = _TOLERANCE) -> tuple[int, float]:
    """The marker's arguments."""
    if not isinstance(within, Real) or not within >= 0:
        raise MemtradeError(f"within is a share from 0 on, not {within!r}")
    return bytes_of(limit), float(within)


def _size(text: str) -> int:
    try:
        return parse_bytes(text, "--memtrade-limit")
    except MemtradeError as error:
        raise pytest.UsageError(str(error)) from error
