"""Kinds of ops: what they do to memory, by the names of their types."""

# Ops whose first output is the buffer of their first input (of IdentityN, each output that of its
# input): they cost no memory of their own.
ALIAS_TYPES = frozenset(
    {"EnsureShape", "ExpandDims", "Identity", "IdentityN", "PreventGradient", "Reshape", "Squeeze",
     "StopGradient"}
)  # fmt: skip

# What stands for the others in a device's part of a step or a pipeline's stage: a tensor that goes
# there, or comes from there. They make no nodes; TensorFlow moves the tensors.
SEND, RECEIVE = "memtrade.Send", "memtrade.Receive"
HANDED_TYPES = frozenset({SEND, RECEIVE})

# Ops that read a variable: their output is the variable's own buffer until it is updated.
READ_TYPES = frozenset({"ReadVariableOp"})

# Ops that leave the variable or table alone whose handle they are given; all others update it.
READING_TYPES = READ_TYPES | frozenset(
    {"LookupTableExportV2", "LookupTableFindV2", "LookupTableSizeV2", "ResourceGather",
     "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
)  # fmt: skip

# How the names of ops begin that read or write rows or parts of variables. With the first of them
# TensorFlow has each read of the variable copy it, and each assignment make a new buffer, for good.
ROWS_OF_VARIABLES = (
    "ResourceGather", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign"
)  # fmt: skip

# How the names of ops begin that write all of a variable where it lies.
UPDATE_TYPES = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply")

# Ops with a state that change nothing.
HARMLESS_TYPES = READING_TYPES | {"Placeholder", "VarHandleOp"}

# Ops that draw random numbers by a state of their own.
DRAWING_TYPES = frozenset(
    {"FixedUnigramCandidateSampler", "LogUniformCandidateSampler", "Multinomial",
     "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle",
     "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
     "UniformCandidateSampler"}
)  # fmt: skip

# Ops that call back into Python; what that does, the graph does not say.
PYTHON_TYPES = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})

# Ops that take the next batch of a data set, which lies on the host.
ITERATING_TYPES = frozenset({"IteratorGetNext", "IteratorGetNextSync"})

# Ops that stand for something from outside the step, or that hold a value of their own.
SOURCE_TYPES = frozenset({"Const", "NoOp", "Placeholder", "VarHandleOp"})

# Ops whose outputs lie there without the step.
GIVEN_TYPES = READ_TYPES | SOURCE_TYPES

# Ops that call a function; extraction opens them up where it can.
CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

# Ops that run a function as often as it takes, or one of several.
LOOP_TYPES = frozenset({"StatelessWhile", "While"})
BRANCH_TYPES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
BODY_TYPES = LOOP_TYPES | BRANCH_TYPES

# Ops whose last output, a reserve space, has no shape that is known, and on CPUs no bytes.
RESERVING_TYPES = frozenset({"FusedBatchNormGradV3", "FusedBatchNormV3"})

# Ops that the runtime runs in each step even where all that they read is constant.
NEVER_FOLDED_TYPES = frozenset({"StatelessRandomGetKeyCounter"})
