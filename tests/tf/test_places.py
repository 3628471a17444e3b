"""Where variables lie and what is free among them, against what the allocator does."""

from __future__ import annotations

import json
from pathlib import Path

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from tests import forks

MIB = 1 << 20


def test_the_free_pieces_of_an_arena_are_found(tmp_path: Path):
    """Holes of several sizes among what is kept: each is found, and nothing else; and a simulated
    allocator that begins with them puts the next tensors where TensorFlow does. What does not lie
    in the arena has no place there, wherever its address is."""
    script = Path(__file__).with_name("drive_places.py")
    environment = child_environment(TrialSpec(memory_limit_bytes=64 * MIB))
    done = forks.ran([str(script), str(tmp_path / "seen.json")], env=environment)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    *holes, (tail, tail_bytes) = seen["free"]
    assert tail + tail_bytes == 64 * MIB
    assert set(map(tuple, seen["holes"])) <= set(map(tuple, holes))
    assert 64 * MIB - sum(size for _, size in seen["free"]) == seen["in_use"]
    assert seen["simulated"] == seen["allocated"]
    assert seen["elsewhere"] == -1
    # What is filled up to there leaves places for variables, whatever holes there were.
    filled, below = seen["filled"], seen["below"]
    assert filled["apart"]
    assert filled["others"] < 300  # and not one for each 256 of 8 MB
    assert filled["free"] == [[below, 64 * MIB - below]]


def test_variables_are_moved_together(tmp_path: Path):
    """Those that share a buffer get one each, in none of the holes; all hold what they held. What
    is garbage by then leaves no holes later on. So is an example of a batch that nobody holds."""
    script = Path(__file__).with_name("drive_moving.py")
    environment = child_environment(TrialSpec(memory_limit_bytes=64 * MIB))
    done = forks.ran([str(script), str(tmp_path / "seen.json")], env=environment)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    (before, _), (after, _) = seen["last"]  # where the last free piece began
    assert before - after + seen["shared"] > 3_000_000
    assert seen["apart"] == seen["variables"] == 8
    assert seen["same"]
    assert seen["text"] == "a text"
    assert seen["kept_bytes"] == 0  # beside the step that is rehearsed
    assert seen["untold_bytes"] == 0
    batch = seen["batch"]
    assert batch["given_back"] == 1_600_000, "and not what somebody else holds"
    assert batch["same_again"]
    assert batch["values"] == "a text"
    assert batch["lower"] > 0


def test_a_step_among_holes_is_predicted_where_the_user_applies(tmp_path: Path):
    """Variables among holes, and slots that begin as one constant: the step takes what was
    predicted, from its first run on: what the free pieces tell, or, where a tensor fits one of
    them to the byte and something small lies there, the more of both. What shares a NumPy array's
    memory takes nothing of the arena.
    A rehearsal lays variables side by side: it takes less."""
    script = Path(__file__).with_name("drive_among_holes.py")
    environment = child_environment(TrialSpec(memory_limit_bytes=128 * MIB))
    done = forks.ran([str(script), str(tmp_path / "seen.json")], env=environment)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["table"] == -1
    assert not seen["ome"]["raised"], "the peak that users read is a step's"
    for peak in seen["ome"]["peaks"]:
        likely = "told" if peak < 0.999 * seen["ome"]["predicted"] else "predicted"
        assert abs(seen["ome"][likely] / peak - 1) < 0.001, seen
    assert max(seen["optimal"]["peaks"]) < 1.001 * seen["optimal"]["predicted"]
