"""`memtrade calibrate`: this device's own rates, as a profile for `memtrade predict --device`."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from memtrade.commands.progress import reporting, say, watched
from memtrade.commands.reading import check_folder, write_output
from memtrade.devices import parse_device, to_toml
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.flags import DeviceFlags, Flag, Verbose
from memtrade.measure.protocol import TrialSpec
from memtrade.results.words import status_text


def calibrate(
    *,
    output: Path,
    device: DeviceFlags = DeviceFlags(),
    overwrite: Flag = False,
    verbose: Verbose = False,
) -> int:
    """Measure this device's rates, in less than a minute, and write them as a profile.

    Convolutions, matrix products, the kernels that memory bounds, copies to host memory and back,
    and what an op takes besides its work. `memtrade predict --device FILE` reads the profile.

    Parameters
    ----------
    output
        The file to write, such as my-machine.toml. It gives the profile its name.
    overwrite
        Replace the file if it is there.
    """
    if output.suffix != ".toml":
        raise MemtradeError(f"a device profile is a .toml file, not {output.name!r}")
    check_folder(output)
    if output.exists() and not overwrite:
        raise MemtradeError(f"{output} is there already: say --overwrite, or choose another name")
    name, limit_bytes = device.resolve()
    if host.tensorflow_version() is None:
        raise MemtradeError(
            "TensorFlow is not installed: pip install 'memtrade[cpu]', or memtrade[gpu]"
        )
    with reporting() as reporter:
        reporter.trial(1, 1, f"calibrate {name}")
        spec = TrialSpec(task="calibrate", device=name, memory_limit_bytes=limit_bytes)
        outcome = watched(spec, reporter, timeout_seconds=device.timeout, verbose=verbose)
    if outcome.profile is None:
        reason = f"{status_text(outcome.status)}: {outcome.reason}"
        say(f"{name} was not calibrated: {reason}")
        return 1
    profile = msgspec.structs.replace(outcome.profile, name=output.stem, source=_source(name))
    text = to_toml(profile)
    parse_device(text, where=output.name)
    write_output(output, text.encode())
    print(text, end="")
    return 0


def _source(device: str) -> str:
    machine = host.describe_machine()
    what = f"{machine.cpu_model}, {machine.cores} cores"
    gpus = {f"gpu:{gpu.index}": gpu.name for gpu in host.gpus()}
    return (
        f"Measured by memtrade calibrate on {datetime.now(UTC):%Y-%m-%d}: "
        f"{gpus.get(device, what)}, {machine.platform}, TensorFlow {machine.tensorflow_version}, "
        f"memtrade {machine.memtrade_version}"
    )
