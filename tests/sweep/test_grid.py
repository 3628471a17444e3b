"""The file of a sweep: what it makes, and what it says of what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import memtrade
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.flags import DeviceFlags, StepFlags, StrategyFlags, make_specs
from memtrade.measure.host import describe_machine
from memtrade.measure.records import trial_id
from memtrade.strategies import STRATEGIES
from memtrade.sweep.cluster import resolve_on_cluster
from memtrade.sweep.grid import read_sweep
from memtrade.sweep.positions import Positions
from tests.sweep.conftest import Write

SWEEPS = Path(memtrade.__file__).resolve().parent / "sweeps"


def labels(path: Path) -> list[str]:
    return [trial.label for trial in read_sweep(path)]


def test_what_a_block_does_not_say_is_as_memtrade_run_has_it(write: Write) -> None:
    trials = read_sweep(write("steps = 5\n[[grid]]"))
    strategy = StrategyFlags()
    expected = make_specs(StepFlags(), task="measure", names=strategy.names(), steps=5)
    assert [trial.spec for trial in trials] == expected
    assert {trial.timeout_seconds for trial in trials} == {DeviceFlags().timeout}
    assert [trial.id for trial in trials] == [trial_id(x, describe_machine()) for x in expected]


def test_lists_are_axes_and_the_strategies_go_fastest(write: Write) -> None:
    path = write("""
        memory_limit = "1GiB"
        [[grid]]
        model = [{ name = "resnet", layers = [18, 50] }, "inception-v4"]
        strategy = ["original", { name = "lms", lb = [1, 3] }]
        batch_size = [32, 64]
    """)
    steps = [f"{model} batch {batch}" for model in ("resnet-18", "resnet-50", "inception-v4")
             for batch in (32, 64)]  # fmt: skip
    strategies = ["original", "lms", "lms lb=3"]
    assert labels(path) == [f"{step}, {each}, 1024 MiB" for step in steps for each in strategies]


def test_every_key_reaches_the_trial(write: Write) -> None:
    path = write("""
        steps = 9
        [[grid]]
        model = { name = "resnet", stride_on = "1x1" }
        strategy = [{ name = "ome", mode = "speed", count = 7 }]
        layers = 34
        version = 2
        image_size = 64
        num_classes = 10
        batch_size = 4
        data_format = "NCHW"
        seed = 3
        optimizer = "adam"
        learning_rate = 0.5
        order = "dataflow"
        device = "arena"
        memory_limit = "512MiB"
        timeout = 7
        steps = 2
        warmup = 0
    """)
    (trial,) = read_sweep(path)
    spec = trial.spec
    assert trial.timeout_seconds == 7
    assert spec.model_options == {
        "layers": 34, "image_size": 64, "num_classes": 10, "batch_size": 4, "data_format": "NCHW",
        "seed": 3, "stride_on": "1x1", "version": 2, "weight_decay": 0.0, "draw_batch": False,
    }  # fmt: skip
    assert (spec.strategy_options["mode"], spec.strategy_options["count"]) == ("speed", 7)
    assert (spec.optimizer, spec.learning_rate, spec.order) == ("adam", 0.5, "dataflow")
    assert (spec.device, spec.memory_limit_bytes) == ("arena", 512 << 20)
    assert (spec.steps, spec.warmup) == (2, 0)


def test_a_block_goes_before_what_stands_above_and_a_table_before_its_block(write: Write) -> None:
    path = write("""
        batch_size = 2
        strategy = "original"
        memory_limit = "1GiB"
        [[grid]]
        [[grid]]
        batch_size = 4
        [[grid]]
        model = { name = "resnet", batch_size = 8 }
        batch_size = 4
    """)
    assert [trial.spec.model_options["batch_size"] for trial in read_sweep(path)] == [2, 4, 8]


def test_a_trial_of_two_blocks_is_one_trial(write: Write) -> None:
    path = write("""
        memory_limit = "1GiB"
        [[grid]]
        strategy = ["original", "lms"]
        [[grid]]
        strategy = ["lms", "ome"]
    """)
    assert [trial.spec.strategy for trial in read_sweep(path)] == ["original", "lms", "ome"]


def test_all_is_every_strategy(write: Write) -> None:
    path = write('memory_limit = "1GiB"\n[[grid]]\nstrategy = "all"')
    assert [trial.spec.strategy for trial in read_sweep(path)] == list(STRATEGIES)


def test_the_default_limit_is_one_for_the_whole_sweep(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter(range(8 << 30, 1 << 30, -(1 << 30)))
    monkeypatch.setattr(host, "free_memory_bytes", lambda: next(free))
    path = write('[[grid]]\nlayers = [18, 50]\n[[grid]]\nmodel = "unet"')
    assert len({trial.spec.memory_limit_bytes for trial in read_sweep(path)}) == 1


def test_a_budget_is_for_the_strategies_that_know_it(write: Write) -> None:
    path = write("""
        memory_limit = "1GiB"
        [[grid]]
        strategy = ["original", "optimal"]
        budget = ["800MB", "700MB"]
    """)
    found = [(x.spec.strategy, x.spec.strategy_options.get("budget")) for x in read_sweep(path)]
    assert found == [("original", None), ("optimal", "800MB"), ("optimal", "700MB")]


# Other commands have their own files in the same folder.
COMING_ALONG = sorted(x for x in SWEEPS.glob("*.toml") if "\n[[grid]]" in x.read_text())


@pytest.mark.parametrize("path", COMING_ALONG, ids=lambda path: path.stem)
def test_the_files_that_come_along_are_valid_here_and_on_a_cluster(path: Path) -> None:
    here = read_sweep(path)
    assert len(here) > 1
    assert here == read_sweep(path, resolve=resolve_on_cluster)


def test_the_thesis_is_among_them() -> None:
    assert {"quick", "thesis"} <= {path.stem for path in COMING_ALONG}
    specs = [trial.spec for trial in read_sweep(SWEEPS / "thesis.toml")]
    at_32 = {(x.model, x.model_options.get("layers"), x.strategy)
             for x in specs if x.model_options["batch_size"] == 32}  # fmt: skip
    assert at_32 >= {("resnet", depth, strategy) for depth in (18, 34, 50, 101, 152, 200)
                     for strategy in ("original", "checkpoints", "lms", "ome")}  # fmt: skip
    assert ("inception-v4", None, "ome") in at_32


# What is wrong. The file's first line is 1; `{...}` in the expectation is what must be said.

WRONG = [
    ("[[grid]]\nmodles = 3", "line 2: unknown key 'modles': did you mean 'model'? The choices are"),
    ("step = 3\n[[grid]]", "line 1: unknown key 'step': did you mean 'steps'?"),
    ("grid = []", "sweep.toml: a sweep has its trials in blocks: write a line [[grid]]"),
    ("steps = 3", "sweep.toml: a sweep has its trials in blocks: write a line [[grid]]"),
    ("[grid]\nsteps = 3", "sweep.toml: a sweep has its trials in blocks: write a line [[grid]]"),
    ("[[grid]]\n[[grids]]\n", "line 2: unknown key 'grids'"),
    ('[[grid]]\nmodel = "gpt2"\n[[grid]]', "line 3: an empty block: give a model, a strategy"),
    ("[[grids]]\nsteps = 3", "line 1: unknown key 'grids': trials are in blocks, write [[grid]]"),
    ("[[pipeline]]\n", "line 1: [[pipeline]] is for `memtrade pipeline sweep`"),
    ('[[grid]]\nstrategy = "all,ome"', "line 2: strategy all stands alone, not 'all,"),
    ("[[grid]]\nsteps = = 3", "sweep.toml is not TOML: Invalid value (at line 2, column 9)"),
    ("[[grid]]\nsteps = []", "line 2, steps: an empty list makes no trials"),
    ("[[grid]]\nsteps = 0", "line 2: steps must be at least 1, not 0"),
    ("[[grid]]\nsteps = [\n 2,\n 0,\n]", "line 4: steps must be at least 1, not 0"),
    ("warmup = -1\n[[grid]]\nsteps = 2", "line 1: warmup must be at least 0, not -1"),
    ("[[grid]]\nsteps = 1.5", "line 2, steps: must be a whole number, not 1.5"),
    ('[[grid]]\nsteps = "3"', "line 2, steps: must be a whole number, not '3'"),
    ("[[grid]]\nbatch_size = true", "line 2, batch_size: must be a whole number, not True"),
    ("[[grid]]\nbatch_size = 0", "line 2: batch_size must be at least 1"),
    ('[[grid]]\norder = "pined"', "line 2, order: unknown order 'pined': did you mean 'pinned'?"),
    ("[[grid]]\ntimeout = [3, 4]", "line 2, timeout: one value for the whole block"),
    ("[[grid]]\ntimeout = 0", "line 2: timeout is a positive number of seconds, not 0"),
    ('[[grid]]\nmemory_limit = ["1GiB",\n"7"]', "line 3: memory_limit is a num"),
    ("[[grid]]\nmemory_limit = 7", "line 2, memory_limit: must be text in quotes, not 7"),
    ('[[grid]]\ndevice = "arenaa"', "line 2, device: unknown device 'arenaa': did you mean"),
    ('[[grid]]\noptimizer = "sdg"', "line 2, optimizer: unknown optimizer 'sdg': did you mean"),
    ("[[grid]]\nlearning_rate = -1", "line 2: learning_rate must be a"),
    ('[[grid]]\nmodel = "resnett"', "line 2, model: unknown model 'resnett': did you mean"),
    (
        '[[grid]]\nmodel = [\n  "resnet", # not "unett"\n  "unett"\n]',
        "line 4, model: unknown model 'unett': did you mean 'unet'? The choices are",
    ),
    ("[[grid]]\nlayers = [18,\n 51]", "line 3: layers must be one of"),
    (
        'layers = 50\n[[grid]]\nmodel = "inception-v4"',
        "line 1, layers: unknown option of inception-v4 'layers'",
    ),
    (
        '[[grid]]\nmodel = { name = "resnet", depth = 18 }',
        "line 2, model: unknown option of resnet 'depth'",
    ),
    (
        '[[grid]]\n[[grid.model]]\nname = "unet"\n[[grid.model]]\nname = "resnet"\nlayers = 51',
        "line 6, model: option 'layers' must be one of",
    ),
    ("[[grid]]\nmodel = { layers = 18 }", "line 2, model: must be a name or a table"),
    ("[[grid]]\nmodel = 18", "line 2, model: must be a name or a table"),
    (
        '[[grid]]\nmodel = { name = "resnet", layers = 1979-05-27 }',
        "line 2, model: option 'layers' must be a number, a word, or a list of them",
    ),
    (
        'steps = 2\n[[grid]]\n[[grid]]\nstrategy = ["ome", "lmss"]',
        "line 4, strategy: unknown strategy 'lmss': did you mean 'lms'?",
    ),
    (
        '[[grid]]\nstrategy = [\n  "ome",\n  { name = "lms", lbb = 3 },\n]',
        "line 4, strategy: unknown option of lms 'lbb': did you mean 'lb'? The choices are",
    ),
    (
        '[[grid]]\nstrategy = { name = "lms", lb = [1, 0] }',
        "line 2, strategy: option 'lb' must be at least 1, not 0",
    ),
    ('[[grid]]\nstrategy = "lms"\nbudget = "1GB"', "line 3: budget is for the strategies"),
    ('[[grid]]\nstrategy = "optimal"\nbudget = "7"', "line 3: budget is a number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_has_its_place(write: Write, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(MemtradeError) as error:
        read_sweep(path)
    assert message in str(error.value)
    assert str(error.value).startswith("sweep.toml")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(MemtradeError, match=r"cannot read the sweep nowhere\.toml: No such file"):
        read_sweep(Path("nowhere.toml"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MemtradeError, match="is not TOML"):
        read_sweep(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[grid]]\nmemory_limit = "1GiB"', 'say device = "arena" or "gpu:0"'),
        (
            '[[grid]]\nmemory_limit = "1GiB"\ndevice = "gpu:1"',
            "line 3, device: unknown device on a cluster",
        ),
        ('[[grid]]\ndevice = "gpu:0"', "on a cluster, say the memory limit"),
    ],
)
def test_on_a_cluster_the_file_says_the_device_and_the_limit(
    write: Write, text: str, message: str
) -> None:
    path = write(text)
    with pytest.raises(MemtradeError) as error:
        read_sweep(path, resolve=resolve_on_cluster)
    assert message in str(error.value)


def test_positions_see_through_strings_brackets_and_tables() -> None:
    positions = Positions(
        "\n".join(
            [
                'title = """',  # 1
                "[[grid]]",  # within the text
                '"""',
                "[[grid]] # the first",  # 4
                "a = [ # [[grid]]",  # 5
                "  1,",
                "  12, 2,",
                "]",
                '"a b".c = 1',  # 9
                "[[grid]]",  # 10
                "[grid.model] # x",  # 11
                "name = 3",
            ]
        ),
        name="grid",
    )
    assert positions.line(0, "title") == 1
    assert positions.line(1, "a") == 5
    assert positions.line(1, "a", "2") == 7
    assert positions.line(1, "a", "nowhere") == 5
    assert positions.line(1, "a b") == 9
    assert positions.line(2, "model") == 11
    assert positions.line(2, "model", "name") == 12
    assert positions.line(2, "title") == 1
    assert positions.line(2, "nowhere") == 10
