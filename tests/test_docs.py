"""The documentation's library example runs as written."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"


def test_the_example_of_any_train_step_runs(capsys):
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    exec(compile(example, str(PAGE), "exec"), {})
    assert float(capsys.readouterr().out) > 0
