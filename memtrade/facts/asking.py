"""What the child that asks kernels is told, and what it says. No TensorFlow here.

    parent ──Question, one JSON document──► child's stdin
    parent ◄──one JSON line per answer───── child's stdout

The child says which kernels it is about to run before it does, so that the parent knows whom a
crash is to be blamed on.
"""

import msgspec

from memtrade.facts.signature import Signature

# Times count as disturbed where others use more than this share of the processor.
QUIET_SHARE = 0.1


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which kernels to ask, on which device.

    Attributes:
        groups: kernels that are asked together, in one function.
        limit_bytes: of the allocator.
        rates: also ask for the device's own rates: an op with nothing to do, copies to the host.
    """

    device: str
    limit_bytes: int
    groups: tuple[tuple[Signature, ...], ...]
    rates: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What one kernel did.

    Attributes:
        requests: (bytes, output or -1 for scratch), in order; bytes below 0 are given back.
        reused: (output or -1 for scratch, position of the input whose buffer it took), where that
            input had no other reader.
        seconds: of one run, on a device that had run it before.
        in_place_seconds: of one whose output took an input's place.
        disturbed: other processes kept the processor busy meanwhile.
    """

    key: str
    requests: tuple[tuple[int, int], ...]
    reused: tuple[tuple[int, int], ...] = ()
    seconds: float
    in_place_seconds: float | None = None
    disturbed: bool = False


class Asking(msgspec.Struct, frozen=True, tag="asking"):
    """These kernels run now."""

    keys: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A kernel that could not be run, and why, in one line; whether it was for want of `room`."""

    key: str
    reason: str
    room: bool = False


class CopyRates(msgspec.Struct, frozen=True, kw_only=True, tag="rates"):
    """Of the device: an op with nothing to do, copies to the host and back, whether oneDNN runs,
    and whether other processes kept the processor busy meanwhile."""

    overhead_seconds: float
    device_to_host_bytes_per_s: float
    host_to_device_bytes_per_s: float
    onednn: bool
    disturbed: bool = False


Said = Answer | Asking | Refused | CopyRates
