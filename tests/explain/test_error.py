"""What can be read off an error, a log, or both; and texts that say something else."""

from __future__ import annotations

import pytest

import memtrade
from memtrade.errors import MemtradeError
from memtrade.explain.cause import of_error
from memtrade.explain.error import read_failure

KERAS = """
2026-11-22 10:12:07.123456: W tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of
tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:

Detected at node gradient_tape/functional_1/conv2_1/convolution/Conv2DBackpropInput defined at (most
recent call last):
  File "train.py", line 12, in <module>

OOM when allocating tensor with shape[411,56,56,256] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc
\t [[{{node gradient_tape/functional_1/conv2_1/convolution/Conv2DBackpropInput}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom
"""  # noqa: E501

DUMP = """
W bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 600.00MiB (rounded to 629145600)requested by op block/MatMul
I bfc_allocator.cc:1049] BFCAllocator dump for GPU_0_bfc
I bfc_allocator.cc:1095] InUse at 7f0000000000 of size 419430400 next 2
I bfc_allocator.cc:1095] Free  at 7f0019000000 of size 419430400 next 3
I bfc_allocator.cc:1095] InUse at 7f0032000000 of size 104857600 next 4
I bfc_allocator.cc:1095] Free  at 7f0038400000 of size 314572800 next 18446744073709551615
I bfc_allocator.cc:1100] 1 Chunks of size 419430400 totalling 400.00MiB
I bfc_allocator.cc:1104] Sum Total of in-use chunks: 500.00MiB
I bfc_allocator.cc:1106] Total bytes in pool: 1258291200 memory_limit_: 1258291200 available bytes: 0 curr_region_allocation_bytes_: 2516582400
I bfc_allocator.cc:1111] Stats:
Limit:                      1258291200
InUse:                       524288000
MaxInUse:                   1153433600
NumAllocs:                        1021
"""  # noqa: E501


def test_the_error_of_a_fit() -> None:
    found = read_failure(KERAS)
    assert found.op == "gradient_tape/functional_1/conv2_1/convolution/Conv2DBackpropInput"
    assert found.shape == (411, 56, 56, 256)
    assert found.requested_bytes == 411 * 56 * 56 * 256 * 4
    assert found.device == "GPU:0"
    assert not found.temporary
    assert found.dump is None
    assert of_error(found).kind == "unknown"


def test_free_bytes_that_are_not_in_one_piece() -> None:
    found = read_failure(DUMP)
    assert (found.op, found.requested_bytes) == ("block/MatMul", 629145600)
    assert found.dump is not None
    assert found.dump.free_bytes == 734003200
    assert found.dump.largest_free_bytes == 419430400
    assert of_error(found).kind == "fragmentation"


def test_less_free_than_asked_for_is_need() -> None:
    found = of_error(read_failure(DUMP.replace("rounded to 629145600", "rounded to 800000000")))
    assert found.kind == "need"
    assert found.free_bytes == 734003200


def test_what_the_allocator_may_still_take_is_in_one_piece() -> None:
    roomy = DUMP.replace("available bytes: 0", "available bytes: 700000000")
    found = read_failure(roomy)
    assert found.dump is not None
    assert found.dump.largest_free_bytes == 700000000
    assert of_error(found).kind == "elsewhere"  # it was allowed to take more


def test_the_last_dump_counts() -> None:
    older = DUMP.replace("of size 419430400 next 3", "of size 999999999 next 3")
    found = read_failure(older + DUMP)
    assert found.dump is not None
    assert found.dump.largest_free_bytes == 419430400


def test_scratch_says_so() -> None:
    text = "OOM when allocating temporary tensor with shape [1048576] and type uint8"
    found = read_failure(text)
    assert found.temporary
    assert found.requested_bytes == 1 << 20
    assert of_error(found).kind == "scratch"


def test_an_attempt_that_may_fail_is_no_failure() -> None:
    tried = (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with "
        "freed_by_count=0. The caller indicates that this is not a failure, but this may mean\n"
    )
    with pytest.raises(MemtradeError, match="no out-of-memory error of TensorFlow"):
        read_failure(tried)
    assert read_failure(tried + KERAS).shape == (411, 56, 56, 256)


def test_the_reason_in_a_record_with_its_node() -> None:
    reason = (
        "OOM when allocating tensor with shape[32,14,14,1024] and type half on /job:localhost/"
        "replica:0/task:0/device:CPU:0 by allocator cpu (node block/Conv2D)"
    )
    found = read_failure(reason)
    assert (found.op, found.requested_bytes) == ("block/Conv2D", 32 * 14 * 14 * 1024 * 2)


GRAPH_STACK = """
Detected at node 'model/expand/mul' defined at (most recent call last):
    File "/usr/lib/python3.8/runpy.py", line 194, in _run_module_as_main
    File "train.py", line 22, in build
      x = layers.Activation("swish")(x)
    File "/opt/lib/python3.8/site-packages/keras/engine/training.py", line 5, in call
Node: 'model/expand/mul'
"""
RUN_STACK = r"""
  File "C:\work\fit.py", line 88, in main
  File "C:\anaconda3\lib\threading.py", line 12, in run
"""


@pytest.mark.parametrize(
    ("text", "op", "op_type", "source", "requested_bytes"),
    [
        (f"{GRAPH_STACK}failed to allocate memory", "model/expand/mul", "", "train.py:22", 0),
        ("failed to allocate memory [Op:AddV2]", "", "AddV2", "", 0),
        ("failed to allocate memory [Op:__inference_train_12]", "", "", "", 0),
        (
            "failed to allocate memory\n\t [[node model/MatMul (defined at <ipython-5>:12) ]]",
            *("model/MatMul", "", "<ipython-5>:12", 0),
        ),
        (
            f"{RUN_STACK}RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.5GiB.",
            *("", "", r"C:\work\fit.py:88", 3 << 29),
        ),
        # A folder of one's own that is called lib, and memtrade's files wherever they are.
        (
            f'File "lib/fit.py", line 9\nFile "{memtrade.__file__}", line 8\nDst tensor is not '
            "initialized",
            *("", "", "lib/fit.py:9", 0),
        ),
        ("Out of memory allocating 1073741824 bytes.", "", "", "", 1 << 30),
        ("to run _EagerConst: Dst tensor is not initialized.", "", "", "", 0),
    ],
)
def test_errors_that_say_less(
    text: str, op: str, op_type: str, source: str, requested_bytes: int
) -> None:
    found = read_failure(text)
    assert (found.op, found.op_type, found.source) == (op, op_type, source)
    assert found.requested_bytes == requested_bytes
    assert not found.by_card
    assert of_error(found).kind == "unknown"
    assert of_error(found).by_itself == bool(op_type)


def test_a_card_that_has_no_more_to_give() -> None:
    text = "failed to allocate 7.79G (8366784512 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY"
    found = read_failure(text)
    assert (found.by_card, found.requested_bytes) == (True, 8366784512)
    assert of_error(found).kind == "elsewhere"
    # It is tried with less then, and what is refused in the end is another request.
    assert not read_failure(f"{text}\n{KERAS}").by_card


@pytest.mark.parametrize("text", ["", "ValueError: shapes do not match", "Killed"])
def test_another_text(text: str) -> None:
    with pytest.raises(MemtradeError, match="Paste the whole error"):
        read_failure(text)
