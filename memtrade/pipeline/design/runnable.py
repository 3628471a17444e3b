"""Which models a pipeline can run, told before anything is traced."""

from memtrade.errors import UnsupportedGraphError
from memtrade.models.base import DrawnModel, Model


def check_runs(model: Model) -> None:
    """Raises UnsupportedGraphError for Keras models and steps of one's own, whose weights are made
    at once, and for those that are given no batch."""
    if not isinstance(model, DrawnModel):
        raise UnsupportedGraphError(
            f"a pipeline runs built-in models, and {model.name} is not one: try --model gpt2"
        )
    if not model.inputs():
        raise UnsupportedGraphError(
            f"{model.name} draws its batch itself, and a pipeline splits one that it is given: "
            "leave draw_batch out"
        )
