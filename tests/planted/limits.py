"""Which cause each case of `tests.planted.cases` has, and its limit in MiB."""

from __future__ import annotations

from memtrade.explain.cause import Cause

LIMITS: dict[str, tuple[Cause, int]] = {
    "a batch of 16000 rows": ("batch", 160),
    "a batch of 128 images": ("batch", 200),
    "a batch for a step of ones own": ("batch", 128),
    "a batch of long sequences": ("batch", 96),
    "slots of adam": ("need", 80),
    "gradients as large as weights": ("need", 120),
    "one large image": ("need", 200),
    "small tensors between large ones": ("fragmentation", 160),
    "the gradient of wide filters": ("scratch", 80),
    "outputs in a list": ("leak", 160),
    "predictions of a callback": ("leak", 200),
    "gradients by name": ("leak", 128),
    "a second model": ("another model", 160),
    "the model of the run before": ("another model", 200),
    "a table of variables": ("another model", 160),
}
