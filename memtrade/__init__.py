"""memtrade: what each memory-saving strategy costs a TensorFlow training step.

Importing this package imports no TensorFlow: the parent process of a measurement stays free of it.
"""

__version__ = "0.1.0"
