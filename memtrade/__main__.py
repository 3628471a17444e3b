"""`python -m memtrade` is `memtrade`, for where its script is not on the path."""

import sys

from memtrade.cli import main

if __name__ == "__main__":
    sys.exit(main())
