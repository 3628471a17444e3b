"""`memtrade.keras.optimize`: a compiled Keras model that trains in less memory.

    model.fit ─► model.make_train_function ─► model.train_function(iterator)
                    ▲ replaced on the model       └─ next(iterator) ─► memtrade.apply(train_step)

Keras documents both as what one may override. Ours takes batches out of the iterator one by one,
so that their sizes are known: each size is planned and rewritten when it first comes, the last,
smaller batch of an epoch included. Where the model trains on several devices, the step is Keras's
own, which runs `train_step` on each of them.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import keras
import tensorflow as tf

from memtrade.api import apply
from memtrade.batch.fitting import (
    Examples,
    accumulate,
    check_fitting,
    checked_options,
    find_batch,
)
from memtrade.errors import MemtradeError, UnsupportedGraphError, check_name
from memtrade.options import NONE, SPLITS, Value
from memtrade.plan import Order
from memtrade.settings import AUTO, check_count, settings_of
from memtrade.tensorboard import MemoryBoard
from memtrade.tf.calling import check_traced
from memtrade.tf.loss import Named
from memtrade.tf.replicas import MIRRORED, refuse_mirrored
from memtrade.units import megabytes

__all__ = ["MemoryBoard", "TrainFunction", "fit", "optimize", "release", "restore"]

log = logging.getLogger("memtrade")

_HOOK = "make_train_function"


def optimize(
    model: keras.Model,
    batch_size: int | None = None,
    budget: str | int | None = None,
    strategy: str = AUTO,
    *,
    example_batch: Any = None,
    loss: Named = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    split: str = NONE,
    **options: Value,
) -> keras.Model:
    """Makes `model.fit` and `model.train_on_batch` run a rewritten training step.

    What they compute stays the same: callbacks, metrics, `steps_per_execution` and a custom
    `train_step` work as before. `restore` undoes it.

    >>> import numpy as np
    >>> layers = [keras.layers.Dense(64, "tanh") for _ in range(8)]
    >>> model = keras.Sequential([keras.Input([64]), *layers, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> model = optimize(model, batch_size=2048)
    >>> history = model.fit(np.ones([4096, 64]), np.ones([4096]), batch_size=2048, verbose=0)
    >>> sorted(history.history)
    ['loss']

    Args:
        model: compiled, on Keras's TensorFlow backend.
        batch_size: that of the training to come. Keras's own default is 32: where the first batch
            has another size than was said here, a warning says what to pass to `model.fit`.
        budget: the peak that the plan may reach, in bytes or as text ("6GB").
        strategy: by default the step stays as it is where it is predicted to fit, and runs the
            fastest plan that fits where it is not: within the budget or, if none is given, the
            device's memory. A name out of `memtrade strategies` is used wherever it saves.
        example_batch: a batch as `model.train_step` gets it, such as (x, y). With it, the step is
            planned now; without it, when the first batch comes.
        loss: which of the logs of a custom `train_step` is the loss; see `memtrade.apply`.
        order: see `memtrade.apply`; so for all that follow. "pinned" or "dataflow".
        device: that the model trains on.
        profile: that plans are made for.
        split: "exact" or "reordered" runs the widest gradients in parts.
        **options: the strategy's.

    Returns:
        The same model.

    Raises:
        MemtradeError: the model is not compiled, or runs eagerly, on another backend or with a
            tf.distribute strategy for which there are no plans.
        UnknownNameError: no such strategy or option.
        InfeasibleBudgetError, UnsupportedGraphError: see `memtrade.apply`; from here with an
            `example_batch`, else from `model.fit`.
    """
    _check(model)
    check_count("batch_size", batch_size, optional=True)
    check_name("split", split, SPLITS)
    where: dict[str, Any] = {"order": order, "device": device, "profile": profile}
    settings = {"strategy": strategy, "budget": budget, **where, **options}
    settings_of(**settings)  # what is wrong is said now, not in `fit`
    settings |= {"loss": loss, "split": split}

    def make_train_function(force: bool = False) -> Any:
        made = model.train_function
        if model.run_eagerly and (force or made is None):
            warnings.warn(
                "the model was compiled anew to run eagerly, so there is no graph to rewrite: it "
                "trains as Keras does it",
                stacklevel=2,
            )
            getattr(type(model), _HOOK)(model, force=force)
            return model.train_function
        if force or not isinstance(made, TrainFunction):
            _without_xla(model)
            made = model.train_function = TrainFunction(model, batch_size, settings)
        return made

    before = vars(model).get(_HOOK), model.train_function, model.jit_compile
    setattr(model, _HOOK, make_train_function)
    try:
        made = make_train_function(force=True)
        if example_batch is not None:
            made.prepare(example_batch)
    except BaseException:
        _put_back(model, *before)
        raise
    return model


def fit(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int | Literal["auto"] = "auto",
    effective_batch: int | None = None,
    strategy: str = AUTO,
    budget: str | int | None = None,
    loss: Named = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    options: Mapping[str, Value] | None = None,
    **fitting: Any,
) -> keras.callbacks.History:
    """`optimize` and `model.fit`, with the largest batch that fits.

    With "auto" the batch is predicted, then found in at most three trials in child processes
    (`memtrade.largest_batch`). The learning rate stays as it is: whether and how to scale it with
    the batch is yours to decide.

    Args:
        model: compiled; see `optimize`.
        data: an array, a tuple (x, y) or (x, y, sample_weight) of arrays or nests of them, or a
            tf.data.Dataset of single examples, which is batched here.
        batch_size: a number leaves the search out.
        effective_batch: examples for each update of the weights. Where so many do not fit, the
            optimizer adds gradients up over several smaller batches of one size
            (`gradient_accumulation_steps` of Keras's optimizers).
        budget: what the step may take; by default the device's memory.
        strategy: see `optimize`.
        loss: see `optimize`.
        order: see `optimize`.
        device: see `optimize`.
        profile: see `optimize`.
        options: the strategy's.
        fitting: what else `model.fit` takes, such as epochs.

    Returns:
        The history. Its params say the batch_size and the gradient_accumulation_steps.

    Raises:
        MemtradeError: the model cannot be optimized, there is no data, or the optimizer has been
            built without accumulators.
        NoBatchFitsError: not even one example fits.
    """
    _check(model)
    check_fitting(model, fitting)
    examples = Examples(data, fitting.get("validation_split") or 0.0)
    where: dict[str, Any] = {"loss": loss, "order": order, "device": device, "profile": profile}
    chosen = checked_options(strategy, options)
    _check_sizes(batch_size, effective_batch)
    epochs = fitting.get("epochs", 1)
    if examples.count is not None and (effective_batch or 0) > examples.count * epochs:
        raise _no_update(effective_batch, f"{examples.count * epochs} examples")
    if batch_size != "auto":
        size = int(batch_size)
        steps = int(effective_batch or size) // size
    else:
        refuse_mirrored(model, 'batch_size="auto" is found for one device')
        _without_xla(model)
        how = {"strategy": strategy, "budget": budget, **where, **chosen}
        found, steps = find_batch(model, examples, effective_batch, how)
        size = found.batch_size if steps == 1 else (effective_batch or 0) // steps
        budget = found.options.get("budget")
        if strategy == AUTO:
            budget = budget or found.budget_bytes
        else:
            chosen = {name: value for name, value in found.options.items() if name != "budget"}
        log.info("batches of %d: peak %s MB", size, megabytes(found.peak_bytes))
    if steps > epochs * (fitting.get("steps_per_epoch") or steps):
        seen = f"{epochs * fitting['steps_per_epoch']} batches of {size}"
        raise _no_update(effective_batch, seen)
    if steps > 1:
        accumulate(model, steps)
    optimize(model, size, budget, strategy, **where, **chosen)
    history = model.fit(**examples.to_fit(size), **fitting)
    history.params |= {"batch_size": size, "gradient_accumulation_steps": steps}
    return history


def restore(model: keras.Model) -> keras.Model:
    """Undoes `optimize`: the model trains as Keras does it.

    Raises:
        MemtradeError: it is not a Keras model.
    """
    _check_model("restore", model)
    vars(model).pop(_HOOK, None)
    model.train_function = None
    return model


def release(model: keras.Model) -> None:
    """Gives back what a model holds on its device: weights and slots. It cannot be used again, nor
    can a model that shares layers with it.

    To delete a model does not do that once it was trained, nor does `keras.backend.clear_session`:
    `fit` sums gradients over replicas, TensorFlow 2.21 keeps how to differentiate that sum for the
    rest of the process, and with it the traced step and all of its variables.

    Raises:
        MemtradeError: it is not a Keras model.
    """
    _check_model("release", model)
    slots = model.optimizer.variables if model.compiled and model.optimizer is not None else []
    for variable in [*model.variables, *slots]:
        for each in getattr(variable.value, "values", [variable.value]):  # one for each replica
            nothing = tf.zeros([0], each.dtype)
            tf.raw_ops.AssignVariableOp(resource=each.handle, value=nothing)


class TrainFunction:
    """What Keras calls for each execution: `steps_per_execution` batches, the last one's logs.

    Attributes:
        step: the rewritten step, a tf.function of a batch; None until the first batch.
    """

    def __init__(self, model: keras.Model, batch_size: int | None, settings: dict[str, Any]):
        self.model, self.batch_size, self.settings = model, batch_size, settings
        self.step: Any = None

    def __call__(self, iterator: Iterator[Any]) -> Any:
        logs = None
        for _, batch in zip(range(self.model.steps_per_execution), iterator, strict=False):
            logs = self._run(batch)
        if logs is None:
            raise StopIteration
        return logs

    def prepare(self, batch: Any) -> None:
        """Traces, plans and rewrites for batches like this one."""
        self._check_size(batch)
        mirrored = isinstance(self.model.distribute_strategy, MIRRORED)
        step = _on_replicas(self.model) if mirrored else self.model.train_step
        self.step = apply(tf.function(step, autograph=False), (batch,), **self.settings)

    def _run(self, batch: Any) -> Any:
        # Where a batch lacks something (no targets), Keras's datasets have an empty Optional.
        batch = keras.tree.map_structure(
            lambda part: None if isinstance(part, tf.experimental.Optional) else part, batch
        )
        if self.step is None:
            self.prepare(batch)
        assert self.step is not None
        return self.step(batch)

    def _check_size(self, batch: Any) -> None:
        # What is not there, such as the weights of samples, is None.
        strategy = self.model.distribute_strategy
        parts = [
            strategy.experimental_local_results(part)
            for part in keras.tree.flatten(batch)
            if part is not None
        ]
        if not all(hasattr(each, "shape") for part in parts for each in part):
            raise MemtradeError(
                "example_batch is a batch of tensors or arrays as model.train_step gets it, such "
                f"as (x, y), not {batch!r}"
            )
        sizes = [sum(each.shape[0] for each in part) for part in parts if len(part[0].shape)]
        size = sizes[0] if sizes else self.batch_size
        if sizes and isinstance(strategy, MIRRORED):  # other processes have their own share
            size = size * strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
        if self.batch_size is not None and size != self.batch_size:
            warnings.warn(
                f"memtrade.keras.optimize was told a batch size of {self.batch_size}, but the "
                f"first batch has {size} examples: pass batch_size={self.batch_size} to "
                "model.fit, or batch the dataset so",
                stacklevel=2,
            )


def _check_model(what: str, model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise MemtradeError(f"{what} takes a Keras model, not {type(model).__name__}")


def _check(model: keras.Model) -> None:
    if keras.backend.backend() != "tensorflow":
        raise MemtradeError(
            f"memtrade rewrites TensorFlow's graphs, and Keras runs on {keras.backend.backend()}: "
            "set KERAS_BACKEND=tensorflow"
        )
    if not hasattr(model, _HOOK):
        raise UnsupportedGraphError(
            f"{type(model).__name__} has no {_HOOK}: memtrade works with Keras 3 models, or with "
            "any step through memtrade.apply"
        )
    if not model.compiled or model.optimizer is None:
        raise MemtradeError("the model has no optimizer yet: call model.compile(...) before")
    if model.run_eagerly:
        raise MemtradeError(
            "the model runs eagerly, so there is no graph to rewrite: compile it with "
            "run_eagerly=False"
        )
    check_traced()
    strategy = model.distribute_strategy
    elsewhere = (tf.distribute.experimental.ParameterServerStrategy, tf.distribute.TPUStrategy)
    several = strategy.num_replicas_in_sync > 1 and not isinstance(strategy, MIRRORED)
    if several or isinstance(strategy, elsewhere):
        raise MemtradeError(
            f"the model trains with {type(strategy).__name__}, and plans are for "
            "tf.distribute.MirroredStrategy, MultiWorkerMirroredStrategy, or one device"
        )


def _on_replicas(model: keras.Model) -> Callable[[Any], Any]:
    """Keras's own step of a batch, which runs `model.train_step` on each replica."""
    make: Any = getattr(type(model), _HOOK)
    ours = model.train_function
    make(model, force=True)
    theirs: Any = model.train_function
    model.train_function = ours

    def train_step(batch: Any) -> Any:
        return theirs(iter([batch]))

    return train_step


def _check_sizes(batch_size: int | Literal["auto"], effective_batch: int | None) -> None:
    check_count('batch_size, unless it is "auto",', 1 if batch_size == "auto" else batch_size)
    check_count("effective_batch", effective_batch, optional=True)
    if batch_size != "auto" and effective_batch and effective_batch % batch_size:
        raise MemtradeError(
            f"effective_batch is a multiple of batch_size, not {effective_batch} of {batch_size}"
        )


def _no_update(effective_batch: int | None, seen: str) -> MemtradeError:
    return MemtradeError(
        f"effective_batch={effective_batch} is more than the {seen} of all epochs, so no update "
        "would come: give a smaller one"
    )


def _put_back(model: keras.Model, hook: Any, train_function: Any, jit_compile: Any) -> None:
    """As it was before `optimize`, which may have been optimized once already."""
    if hook is None:
        vars(model).pop(_HOOK, None)
    else:
        setattr(model, _HOOK, hook)
    model.train_function, model.jit_compile = train_function, jit_compile


def _without_xla(model: keras.Model) -> None:
    """Keras turns XLA on by itself where it can (jit_compile="auto")."""
    if model.jit_compile:
        warnings.warn(
            "memtrade turns jit_compile off for this model: XLA would undo the plan. "
            "compile(jit_compile=False) says the same",
            stacklevel=3,
        )
        model.jit_compile = False
