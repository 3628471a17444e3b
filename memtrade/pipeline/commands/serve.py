"""`memtrade pipeline serve`: one stage, for pipelines that are driven from another machine."""

from memtrade.commands.progress import ignore, log, say
from memtrade.measure.flags import DeviceFlags, Verbose
from memtrade.pipeline.commands.runner import StageFlags
from memtrade.pipeline.measure.protocol import PipelineEvent, Serving
from memtrade.pipeline.measure.trial import serve_stage


def serve(
    *,
    cluster: str,
    stage: int,
    device: str | None = None,
    memory_limit: str | None = None,
    verbose: Verbose = False,
) -> int:
    """Serve one stage for pipelines that are driven from another machine. Ctrl-C ends it.

    Like all TensorFlow servers it listens on all interfaces, asks for no password, and runs
    whatever it is asked to: only within a network of one's own.

    Parameters
    ----------
    cluster
        host:port of all stages, in order, separated by commas: the same for every server.
    stage
        Which of them this one is, from 1.
    device
        arena or gpu:N, out of `memtrade devices`. Unless given: gpu:0 if there is one, else arena.
    memory_limit
        Of the stage, such as 2GiB.
    """
    where = StageFlags(cluster=cluster)
    name, limit_bytes = DeviceFlags(device=device, memory_limit=memory_limit).resolve()

    def tell(event: PipelineEvent) -> None:
        if isinstance(event, Serving):
            say(f"serving stage {event.stage + 1} at {where.addresses()[event.stage]}")

    outcome = serve_stage(
        stage - 1,
        where.addresses(),
        device=name,
        memory_limit_bytes=limit_bytes,
        on_event=tell,
        on_log=log if verbose else ignore,
    )
    say(outcome.reason)
    return 1
