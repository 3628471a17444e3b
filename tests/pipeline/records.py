"""Records of pipelined trials, made by hand: the figures are in, and nothing has run."""

from memtrade.models import make_model
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.measure.protocol import (
    PipelineMeasured,
    PipelineOutcome,
    PipelineTrial,
    StageMeasured,
)
from memtrade.pipeline.measure.trial import PipelineRecord, make_pipeline_record
from tests.graphs import ARENA
from tests.pipeline.graphs import MIB, network


def record(
    *,
    partitions: int,
    micro_batches: int,
    checkpoint: str = "never",
    schedule: str = "gpipe",
    strategy: str = "original",
    activation_mib: int | None = 10,
    seconds: float = 1.0,
    batch_size: int = 8,
) -> PipelineRecord:
    """One trial. Each stage has 3 MiB of parameters and `activation_mib` of activations; it ran
    out of memory if that is None."""
    graph = network(4)
    plan = make_schedule(
        schedule,  # pyright: ignore[reportArgumentType]
        stages=partitions,
        micro_batches=micro_batches,
        checkpoint=checkpoint,  # pyright: ignore[reportArgumentType]
    )
    made = Partitioner(graph).by_time(partitions, ARENA, slack=0.1)
    predicted = PipelinePredictor(graph, made, ARENA).predict(
        plan, micro_batch_size=batch_size // micro_batches
    )
    model = {"batch_size": batch_size, "width": 64, "heads": 4}
    trial = PipelineTrial(
        model="gpt2",
        model_options=vars(make_model("gpt2", model)),
        partitions=partitions,
        micro_batches=micro_batches,
        schedule=plan.name,
        checkpoint=plan.checkpoint,
        strategy=strategy,
        memory_limit_bytes=100 * MIB,
    )
    outcome = PipelineOutcome(status="out_of_memory", reason="stage 1: OOM", stage=0)
    if activation_mib is not None:
        measured = _measured(partitions, activation_mib, seconds, batch_size)
        outcome = PipelineOutcome(status="ok", measured=measured)
    return make_pipeline_record(trial, outcome, predicted, command="memtrade pipeline run")


def _measured(
    partitions: int, activation_mib: int, seconds: float, batch_size: int
) -> PipelineMeasured:
    stage = StageMeasured(
        parameters=MIB // 4,
        variable_bytes=MIB,
        gradient_bytes=MIB,
        slot_bytes=MIB,
        persistent_bytes=3 * MIB,
        peak_bytes=(3 + activation_mib) * MIB,
        peak_bytes_by_step=((3 + activation_mib) * MIB,) * 2,
        activation_bytes=activation_mib * MIB,
        busy_seconds=seconds / 2,
        forward_seconds=(seconds / 6,),
        backward_seconds=(seconds / 3,),
        update_seconds=0.0,
    )
    return PipelineMeasured(
        stages=(stage,) * partitions,
        step_seconds=(seconds,),
        median_seconds=seconds,
        forward_seconds=seconds / 3,
        backward_seconds=seconds / 2,
        bubble=0.25,
        samples_per_second=batch_size / seconds,
        build_seconds=1.0,
        losses=(1.0, 0.5),
    )
