"""Every page has one template, and the fitted profile is what the script that fits it writes."""

import pytest

from memtrade.devices import device_names, load_device
from memtrade.papers import pages
from memtrade.papers.thesis_predictor import FITTED
from memtrade.results.sheets import Sheet


def test_each_template_is_a_page_of_one_module():
    folder = pages.Path(pages.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    names = [path.name for path in (folder / "templates").iterdir()]
    assert len(names) > 10
    used = {name: sum(f'"{name}"' in text for text in texts) for name in names}
    assert used == dict.fromkeys(names, 1)


def test_tables_stand_in_a_page_as_markdown_and_nothing_may_be_missing():
    sheet = Sheet(title="Speeds", columns=("device",), rows=(("v100",),))
    text = pages.page_text("devices.md", speeds=sheet)
    assert text == f"# Device profiles against published training speeds\n\n{sheet.to_markdown()}\n"
    with pytest.raises(pages.jinja2.UndefinedError, match="speeds"):
        pages.page_text("devices.md")


def test_the_fitted_profile_is_written_as_it_is_shipped():
    pytest.importorskip("tensorflow")
    from memtrade.papers.thesis_prediction import profile

    assert FITTED in device_names()
    shipped = pages.Path(pages.__file__).parents[1] / "devices" / f"{FITTED}.toml"
    assert profile(load_device(FITTED)) == shipped.read_text(encoding="utf-8")
