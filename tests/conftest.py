"""What must be said before TensorFlow is imported by whichever test comes first."""

import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as in the worker, on every CPU
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # as in the worker: one executor thread

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
