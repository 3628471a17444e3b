"""Finds the largest batch per strategy: `memtrade max-batch` with the same flags and help."""

import sys

from memtrade.__main__ import main

if __name__ == "__main__":
    flags = sys.argv[1:]
    sys.exit(main(["max-batch", *flags], typed=["python", "max_batch.py", *flags]))
