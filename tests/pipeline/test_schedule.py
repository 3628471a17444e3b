import itertools

import pytest

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.schedule import (
    StageTask,
    TaskKind,
    Turn,
    make_schedule,
    micro_batch_size,
    receives,
    sends,
)
from tests.graphs import target
from tests.pipeline.graphs import network

SIZES = [(1, 1), (1, 4), (2, 3), (3, 4), (4, 2), (4, 8)]


def picture(schedule) -> list[str]:
    rows = []
    for tasks in schedule.tasks:
        cells = ["."] * schedule.clocks
        for task in tasks:
            if task.kind != "recompute":
                cells[task.clock] = f"{task.kind[0].upper()}{task.micro_batch}"
        rows.append(" ".join(cells))
    return rows


def test_gpipe_fills_drains_and_comes_back_as_its_mirror_image():
    assert picture(make_schedule("gpipe", stages=3, micro_batches=4)) == [
        "F0 F1 F2 F3 . . . . B3 B2 B1 B0",
        ". F0 F1 F2 F3 . . B3 B2 B1 B0 .",
        ". . F0 F1 F2 F3 B3 B2 B1 B0 . .",
    ]


def test_1f1b_runs_a_backward_before_the_next_forward():
    assert picture(make_schedule("1f1b", stages=3, micro_batches=4)) == [
        "F0 F1 F2 . . B0 F3 B1 . B2 . B3",
        ". F0 F1 . B0 F2 B1 F3 B2 . B3 .",
        ". . F0 B0 F1 B1 F2 B2 F3 B3 . .",
    ]


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_micro_batch_i_is_on_stage_j_at_clock_i_plus_j(stages: int, micro_batches: int):
    schedule = make_schedule("gpipe", stages=stages, micro_batches=micro_batches)
    last = 2 * (stages + micro_batches - 1) - 1
    for stage, tasks in enumerate(schedule.tasks):
        for task in tasks:
            clock = task.micro_batch + stage
            assert task.clock == (clock if task.kind == "forward" else last - clock)


def test_what_a_task_made_goes_behind_the_task_before_its_reader():
    schedule = make_schedule("gpipe", stages=3, micro_batches=4, checkpoint="always")
    third_forward = schedule.tasks[0][2]
    before = StageTask(clock=2, kind="forward", micro_batch=1)
    # Gone with the clock of both, so the sender's next task waits for it.
    assert schedule.hand_over(third_forward, 1) == (before, before.moment)
    assert before.moment == third_forward.moment
    # A skip: its reader is a clock behind.
    before = StageTask(clock=3, kind="forward", micro_batch=1)
    assert schedule.hand_over(third_forward, 2) == (before, before.moment)
    # A gradient waits until its micro-batch is recomputed, which may start before, and until its
    # sender has recomputed the next one.
    backward = schedule.task(2, "backward", 2)
    again = schedule.task(1, "recompute", 2)
    assert schedule.hand_over(backward, 1) == (again, again.moment)
    assert schedule.task(2, "recompute", 1).moment == again.moment
    # The first one has nobody to wait for.
    assert schedule.hand_over(schedule.tasks[0][0], 1) == (None, schedule.tasks[0][0].moment)


def test_a_stage_hands_on_before_it_receives_and_no_two_wait_for_each_other():
    schedule = make_schedule("gpipe", stages=4, micro_batches=4, checkpoint="never")

    def turn(source: int, target: int, kind: TaskKind, i: int) -> Turn:
        return schedule.turn(schedule.task(source, kind, i), source, target)

    # At one moment, what leaves a stage goes before what arrives there, so the way is free.
    assert turn(2, 3, "forward", 0) < turn(1, 2, "forward", 1) < turn(0, 1, "forward", 2)
    assert turn(1, 0, "backward", 3) < turn(2, 1, "backward", 2) < turn(3, 2, "backward", 1)
    # What was made first arrives first.
    assert turn(0, 2, "forward", 1) < turn(1, 2, "forward", 1)
    # Two stages of 1F1B hand each other something at one moment: forward goes first.
    schedule = make_schedule("1f1b", stages=2, micro_batches=4, checkpoint="never")
    ahead, back = turn(0, 1, "forward", 1), turn(1, 0, "backward", 0)
    assert ahead[0] == back[0]
    assert ahead < back


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_task_once_and_after_what_it_needs(name, stages: int, micro_batches: int):
    schedule = make_schedule(name, stages=stages, micro_batches=micro_batches, checkpoint="always")
    clock = {
        (stage, task.kind, task.micro_batch): task.clock
        for stage, tasks in enumerate(schedule.tasks)
        for task in tasks
    }
    assert len(clock) == 3 * stages * micro_batches == sum(map(len, schedule.tasks))
    for stage, i in itertools.product(range(stages), range(micro_batches)):
        assert clock[stage, "forward", i] < clock[stage, "backward", i]
        assert clock[stage, "recompute", i] == clock[stage, "backward", i]
        if stage:
            assert clock[stage - 1, "forward", i] < clock[stage, "forward", i]
            assert clock[stage - 1, "backward", i] > clock[stage, "backward", i]
    assert schedule.clocks == 2 * (stages + micro_batches - 1)  # 1F1B has the same bubble


def test_1f1b_has_fewer_micro_batches_under_way():
    gpipe = make_schedule("gpipe", stages=4, micro_batches=8)
    other = make_schedule("1f1b", stages=4, micro_batches=8)
    assert [gpipe.most_in_flight(stage) for stage in range(4)] == [8, 8, 8, 8]
    assert [other.most_in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]


@pytest.mark.parametrize(("name", "held"), [("gpipe", 8), ("1f1b", 4)])
def test_what_is_recomputed_is_held_for_one_micro_batch(name, held):
    kept = make_schedule(name, stages=4, micro_batches=8, checkpoint="never")
    made_again = make_schedule(name, stages=4, micro_batches=8, checkpoint="except_last")
    assert (kept.held, made_again.held) == (held, 1)


@pytest.mark.parametrize(
    ("checkpoint", "recomputed"),
    [("always", [0, 1, 2]), ("except_last", [0, 1]), ("never", [])],
)
def test_which_micro_batches_are_recomputed(checkpoint, recomputed: list[int]):
    schedule = make_schedule("gpipe", stages=2, micro_batches=3, checkpoint=checkpoint)
    for tasks in schedule.tasks:
        again = [task.micro_batch for task in tasks if task.kind == "recompute"]
        assert sorted(again) == recomputed
        for before, task in itertools.pairwise(tasks):
            if task.kind == "backward" and task.micro_batch in recomputed:
                assert before == StageTask(task.clock, "recompute", task.micro_batch)


def test_what_is_sent_is_received_gradients_in_reverse():
    made = Partitioner(network(6, skips={6: 1})).cut_at(["layer2", "layer4"], target("p40"))
    for kind in ("forward", "backward"):
        task = StageTask(0, kind, 1)
        sent = [m for stage in range(3) for m in sends(made, stage, task)]
        received = [m for stage in range(3) for m in receives(made, stage, task)]
        assert sorted(sent, key=repr) == sorted(received, key=repr)
        assert len(sent) == 3
        pairs = {(m.source, m.target) for m in sent}
        skip = (0, 2) if kind == "forward" else (2, 0)
        assert skip in pairs
    assert receives(made, 1, StageTask(0, "recompute", 1)) == sends(
        made, 1, StageTask(0, "recompute", 1)
    )


def test_bad_input_is_named():
    with pytest.raises(UnknownNameError, match="unknown schedule 'gpip'"):
        make_schedule("gpip", stages=1, micro_batches=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownNameError, match="unknown checkpoint mode 'alway'"):
        make_schedule("gpipe", stages=1, micro_batches=1, checkpoint="alway")  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match="micro-batches, not 0"):
        make_schedule("gpipe", stages=1, micro_batches=0)


def test_micro_batches_divide_the_batch():
    assert micro_batch_size(64, 8) == 8
    with pytest.raises(
        MemtradeError, match=r"batch of 64 cannot be split into 7 .* take 2 or 4 or 8"
    ):
        micro_batch_size(64, 7)
    with pytest.raises(MemtradeError, match="take 1 or 999999999989"):
        micro_batch_size(999_999_999_989, 7)  # a prime, and told at once
