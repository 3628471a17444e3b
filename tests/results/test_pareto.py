from memtrade.results.pareto import Pareto, to_html


def test_the_page_shows_the_command_as_it_was_typed() -> None:
    """plotly knows a few tags, and shows others as they are written."""
    page = to_html(Pareto(step="s", device="d", points=(), command="memtrade pareto --layers 18"))
    assert '"text":"memtrade pareto --layers 18"' in page
