"""What must be said before TensorFlow is imported by whichever test comes first."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # as in the worker: one executor thread
