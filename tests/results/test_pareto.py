from memtrade.results.pareto import Pareto, Point, to_html


def test_the_page_shows_the_command_as_it_was_typed() -> None:
    """plotly knows a few tags, and shows others as they are written."""
    page = to_html(Pareto(step="s", device="d", points=(), command="memtrade pareto --layers 18"))
    assert '"text":"memtrade pareto --layers 18"' in page


def test_a_point_says_how_its_peak_may_differ() -> None:
    point = Point("lms", None, 5_000_000, 0, 0.1, 1.0, bound="≈")
    page = to_html(Pareto(step="s", device="d", points=(point,), command=""))
    assert "peak \\u2248 5.0 MB" in page
