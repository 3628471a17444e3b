"""A GraphDef as a tf.function that takes, returns and captures what another function does."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from memtrade.tf.nodes import tensor_name
from memtrade.tf.structure import packed


def graft(
    concrete: Any,
    graph_def: Any,
    specs: Sequence[tf.TensorSpec],
    *,
    results: Sequence[str] | None = None,
    effects: Sequence[str] | None = None,
    on_import: Callable[[Any], None] = lambda graph: None,
) -> Any:
    """A tf.function of `specs` that runs `graph_def` in place of the graph of `concrete`.

    It returns what `concrete` does, in the same structure, once the effects have happened. The
    captured variables are the same ones. Importing into a traced function, with the captured
    handles as inputs, keeps the shapes behind variables known.

    Args:
        concrete: a tf.types.experimental.ConcreteFunction. Its inputs keep their names in
            `graph_def`.
        results: for each output of `concrete`, the tensor of `graph_def` to return; effects: the
            ops that must run. Unless given, those of the same names.
        on_import: called with the new function's graph, while it is being traced.
    """
    graph = concrete.graph
    return grafted(
        graph_def,
        specs,
        names=[t.op.name for t in graph.inputs],
        captured=lambda: concrete.captured_inputs,
        structure=concrete.structured_outputs,
        results=[t.name for t in graph.outputs] if results is None else results,
        effects=[op.name for op in graph.control_outputs] if effects is None else effects,
        on_import=on_import,
    )


def grafted(
    graph_def: Any,
    specs: Sequence[tf.TensorSpec],
    *,
    names: Sequence[str],
    captured: Callable[[], Sequence[tf.Tensor]],
    structure: Any,
    results: Sequence[str],
    effects: Sequence[str],
    on_import: Callable[[Any], None] = lambda graph: None,
    alone: bool = True,
) -> Any:
    """A tf.function of `specs` that runs `graph_def`; see `graft`.

    Args:
        names: of its inputs, those of `specs` first and then those of what it captures.
        captured: asked for these while the function is traced.
        structure: what is returned, with any tensors in the places of the results.
        alone: whether a call of it stays a call, and is not inlined by whoever makes it.
    """
    for node in graph_def.node:
        node.attr.pop("_class", None)  # beside which op it is to run: some are inputs now
    read = {reference.partition(":")[0] for node in graph_def.node for reference in node.input}
    results = [name.removesuffix(":0") for name in results]
    made = [name for name in results if name not in names]  # the others are inputs, handed on

    def step(*arguments: tf.Tensor) -> Any:
        graph = tf.compat.v1.get_default_graph()
        # Asked here, where values that each call asks for become those of this function.
        values = [*arguments, *map(graph.capture, captured())]
        given = dict(zip(names, values, strict=True))
        inputs = {name: value for name, value in given.items() if name in read}
        wanted = [*(tensor_name(name) for name in made), *effects]
        fetched = tf.graph_util.import_graph_def(graph_def, inputs, wanted, name="") or ()
        on_import(graph)
        given.update(zip(made, fetched, strict=False))
        with tf.control_dependencies(fetched[len(made) :]):
            returned = [tf.identity(given[name]) for name in results]
        return packed(structure, returned)

    return tf.function(
        step,
        input_signature=tuple(specs),
        autograph=False,
        # It is called by its own name, with its own configuration: see memtrade/api.py.
        experimental_attributes={"_noinline": True} if alone else None,
    )


def called_as_it_is(concrete: Any, values: Sequence[tf.Tensor], config: Any = None) -> Any:
    """What a concrete function returns for `values`, under a ConfigProto of its own; unless given,
    one without TensorFlow's optimizer."""
    if config is None:
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    results = tf.raw_ops.StatefulPartitionedCall(
        args=[*values, *concrete.captured_inputs],
        Tout=[t.dtype for t in concrete.outputs],
        f=concrete,
        config_proto=config.SerializeToString(),
    )
    if isinstance(results, tf.Operation):  # it returns nothing
        results = []
    for result, known in zip(results, concrete.outputs, strict=True):
        result.set_shape(known.shape)
    return packed(concrete.structured_outputs, results)


def ran_once(function: Any, values: Sequence[Any] = ()) -> list[tf.Tensor]:
    """The results of a concrete function that is run and given up; none where the device is too
    small, or `values` are no good.

    Optimizing a large graph that runs once takes longer than running it.
    """
    alone = tf.function(lambda *given: called_as_it_is(function, given), autograph=False)
    try:
        return list(alone(*map(tf.convert_to_tensor, values)))
    except tf.errors.OpError:
        return []
    finally:
        alone = None
        gc.collect()  # with a function goes what the runtime has made of its constants
