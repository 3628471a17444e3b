"""Compares memory-saving strategies: `memtrade run` with the same flags, and the same help."""

import sys

from memtrade.__main__ import main

if __name__ == "__main__":
    flags = sys.argv[1:]
    sys.exit(main(["run", *flags], typed=["python", "benchmark.py", *flags]))
