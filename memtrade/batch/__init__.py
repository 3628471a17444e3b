"""The largest batch that fits: of any step (largest.py), of a Keras model (fitting.py)."""

from memtrade.batch.largest import LargestBatch, NoBatchFitsError, TriedBatch, largest_batch

__all__ = ["LargestBatch", "NoBatchFitsError", "TriedBatch", "largest_batch"]
