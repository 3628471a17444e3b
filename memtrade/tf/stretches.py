"""The function in which kernels run one after the other, each with the clock around it: the picture
in `memtrade.tf.ask`.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.facts.signature import Operand, Signature
from memtrade.tf.calls import Alone, body_of, is_compiled, values_read
from memtrade.tf.nodes import make_node

# Of floats, whole numbers and truth values: what an input holds. Nothing overflows, and an index
# of 0 is always there.
_FILLINGS = {"bool": True}
_FLOAT, _WHOLE = 0.5, 0

# Inputs with which a kernel fails where all numbers are the same, and what they hold instead: by
# op type and position, the method that makes them.
_HOLDING = {
    ("FloorDiv", 1): "_ones", ("FloorMod", 1): "_ones", ("HistogramFixedWidth", 1): "_counted",
    ("InvertPermutation", 0): "_counted", ("MatrixInverse", 0): "_diagonal",
    ("MatrixSolve", 0): "_diagonal", ("Mod", 1): "_ones", ("TruncateDiv", 1): "_ones",
    ("TruncateMod", 1): "_ones",
}  # fmt: skip

# The outputs of the op that tells what a line of the log takes.
RULER = 64


class OtherShapeError(Exception):
    """The kernel makes tensors of other shapes than the step's: it is not the step's kernel."""


def _given(signature: Signature) -> list[Operand]:
    """The inputs, with a variable's value where the graph has its handle."""
    if not signature.functions:
        return list(signature.inputs)
    read = values_read(Alone(signature.node, signature.functions))
    return [
        Operand(*read[i]) if i in read else operand for i, operand in enumerate(signature.inputs)
    ]


class Stretches:
    """A GraphDef in the making."""

    def __init__(self) -> None:
        self.graph_def = tf.compat.v1.GraphDef()
        self.previous = ""
        self.timed: list[str] = []
        self.fillings: dict[str, tf.Tensor] = {}  # placeholder of a value -> the value
        self.wanted: dict[str, tuple[int, ...]] = {}
        self._functions: dict[tuple[Any, ...], Any] = {}

    def add(self, name: str, signature: Signature, *, free: Container[int] = ()) -> None:
        """`free`: positions of the inputs whose place an output may take."""
        given = _given(signature)
        inputs = self._inputs(name, signature, given)
        before = inputs
        if signature.outputs:
            # What a step's kernel writes to was in use a moment ago, and is still in the cache.
            dtype, shape = max(signature.outputs, key=lambda each: math.prod(each[1]))
            before = [*inputs, self._input(f"{name}/was", Operand(dtype, shape))]
        ready = dict.fromkeys(f"^{each.partition(':')[0]}" for each in before)
        begin = self._node("Timestamp", f"{name}/begin", [*ready, *self._waits()])
        run = self.graph_def.node.add()
        run.ParseFromString(signature.node)
        if signature.functions:
            run.attr["f"].func.name = self._function(signature, given)
        run.name = f"{name}/run"
        run.input.extend([*inputs, f"^{begin}"])
        self.previous = self._node("Timestamp", f"{name}/end", [f"^{run.name}"])
        self.timed += [begin, self.previous]
        for i, operand in enumerate(given):
            if i not in free:
                read = [inputs[i], *self._waits()]
                types = {"T": operand.dtype, "out_type": "int32"}
                self.previous = self._node("Size", f"{name}/held{i}", read, **types)
        if not free:
            for i, (_, shape) in enumerate(signature.outputs):
                self.wanted[f"{run.name}:{i}"] = shape

    def _function(self, signature: Signature, given: Sequence[Operand]) -> str:
        """The name under which TensorFlow knows what the call calls: it learns of functions that
        are traced, not of those in a graph that is imported into one."""
        key = signature.node, signature.functions, tuple(given)
        if key not in self._functions:
            alone = Alone(signature.node, signature.functions)
            names = [f"in{i}" for i in range(len(given))]
            body = body_of(alone, names)

            def called(*inputs: tf.Tensor) -> list[tf.Tensor]:
                given_to = dict(zip(names, inputs, strict=True))
                read = {name: t for name, t in given_to.items() if name in body.read}
                return tf.graph_util.import_graph_def(body.graph_def, read, body.results, name="")

            self._functions[key] = tf.function(
                called,
                input_signature=[tf.TensorSpec(each.shape, each.dtype) for each in given],
                autograph=False,
                jit_compile=is_compiled(alone) or None,
                experimental_attributes={"_noinline": True},
            ).get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
        return self._functions[key].name

    def _inputs(self, name: str, signature: Signature, given: Sequence[Operand]) -> list[str]:
        maker = signature.maker
        made = dict(maker.made) if maker else {}
        inputs = []
        for i, operand in enumerate(given):
            if i in made:
                inputs.append(f"{name}/maker:{made[i]}")
                continue
            known = operand.values is not None
            make = "_input" if known else _HOLDING.get((signature.op_type, i), "_input")
            inputs.append(getattr(self, make)(f"{name}/in{i}", operand))
        if signature.op_type == "SparseToDense" and len(given[0].shape) == 2:
            inputs[0] = self._places(f"{name}/places", given[0], inputs[1])
        if maker:
            run = self.graph_def.node.add()
            run.ParseFromString(maker.node)
            run.name = f"{name}/maker"
            run.input.extend(
                inputs[each] if isinstance(each, int) else self._input(f"{run.name}{i}", each)
                for i, each in enumerate(maker.inputs)
            )
        return inputs

    def _input(self, name: str, operand: Operand) -> str:
        if operand.values is not None:
            dtype = tf.as_dtype(operand.dtype)
            values = np.asarray(operand.values, dtype.as_numpy_dtype).reshape(operand.shape)
            return self._const(name, values)
        whole = tf.as_dtype(operand.dtype).is_integer
        filling = _FILLINGS.get(operand.dtype, _WHOLE if whole else _FLOAT)
        return self._filled(name, operand, filling)

    def _filled(self, name: str, operand: Operand, filling: float) -> str:
        dims = self._const(f"{name}/dims", np.asarray(operand.shape, np.int64))
        inputs = [dims, self._value(operand.dtype, filling), *self._waits()]
        return self._node("Fill", name, inputs, T=operand.dtype, index_type="int64")

    def _ones(self, name: str, operand: Operand) -> str:
        """No number is divided by 0."""
        return self._filled(name, operand, 1)

    def _diagonal(self, name: str, operand: Operand) -> str:
        """Matrices that have an inverse."""
        diagonals = Operand(operand.dtype, operand.shape[:-1])
        ones = self._ones(f"{name}/diagonal", diagonals)
        return self._node("MatrixDiag", name, [ones], T=operand.dtype)

    def _counted(self, name: str, operand: Operand) -> str:
        """0, 1, 2, ...: each number once, and they rise."""
        dtype, (count,) = tf.as_dtype(operand.dtype).as_numpy_dtype, operand.shape
        limit = self._const(f"{name}/limit", np.asarray(count, dtype))
        step = self._const(f"{name}/step", np.asarray(1, dtype))
        inputs = [self._value(operand.dtype, 0), limit, step, *self._waits()]
        return self._node("Range", name, inputs, Tidx=operand.dtype)

    def _places(self, name: str, operand: Operand, dims: str) -> str:
        """The first places in a tensor of `dims`, each once and in order."""
        counted = self._counted(f"{name}/counted", Operand(operand.dtype, operand.shape[:1]))
        columns = self._node("UnravelIndex", f"{name}/columns", [counted, dims], Tidx=operand.dtype)
        turned = self._const(f"{name}/turned", np.asarray([1, 0], np.int32))
        return self._node("Transpose", name, [columns, turned], T=operand.dtype, Tperm="int32")

    def _waits(self) -> list[str]:
        return [f"^{self.previous}"] if self.previous else []

    def _value(self, dtype: str, filling: float) -> str:
        """A placeholder for the filling: a constant would be folded, and the kernel with it."""
        name = f"value/{dtype}/{filling}"
        if name not in self.fillings:
            self.fillings[name] = tf.cast(filling, dtype)
            self._node("Placeholder", name, dtype=dtype)
        return name

    def _const(self, name: str, values: np.ndarray) -> str:
        return self._node("Const", name, dtype=tf.as_dtype(values.dtype), value=values)

    def _node(self, op: str, name: str, inputs: Iterable[str] = (), **attrs: Any) -> str:
        self.graph_def.node.append(make_node(op, name, inputs, **attrs))
        return name

    def _stamp(self, name: str) -> None:
        self.previous = self._node("Timestamp", name, self._waits())
        self.timed.append(name)

    def _ruler(self) -> None:
        axis = self._const("ruler/axis", np.asarray(0, np.int32))
        whole = self._const("ruler/whole", np.zeros(RULER, np.float32))
        inputs = [axis, whole, *self._waits()]
        self.previous = self._node("Split", "ruler/run", inputs, T="float32", num_split=RULER)

    def function(self) -> Callable[[], list[float]]:
        """Runs all stretches; returns the seconds of each, then of one with many tiny outputs, and
        last of an empty one."""
        self._stamp("ruler/begin")
        self._ruler()
        self._stamp("ruler/end")
        self._stamp("empty/begin")
        self._stamp("empty/end")

        @tf.function(autograph=False)
        def stretches(*fillings: tf.Tensor) -> tf.Tensor:
            fetched = [*(f"{name}:0" for name in self.timed), *self.wanted]
            made = tf.graph_util.import_graph_def(
                self.graph_def,
                input_map=dict(zip(self.fillings, fillings, strict=True)),
                return_elements=fetched,
                name="",
            )
            for t, shape in zip(made[len(self.timed) :], self.wanted.values(), strict=True):
                if not t.shape.is_compatible_with(shape):
                    raise OtherShapeError(f"{t.name} is {t.shape}, not {shape}")
            with tf.control_dependencies([made[0].graph.get_operation_by_name(self.previous)]):
                return tf.stack(made[: len(self.timed)])

        values = list(self.fillings.values())

        def run() -> list[float]:
            stamps = stretches(*values).numpy()
            return [float(b - a) for a, b in zip(stamps[::2], stamps[1::2], strict=True)]

        return run
