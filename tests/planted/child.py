"""One planted case: runs out of memory and has it explained on stderr, or, cured, does not.

    python -m tests.planted.child NAME [CURE, as JSON]

Exit status 0: it ran. 3: out of memory.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from tests.planted.cases import CASES, Cure
from tests.planted.trials import OUT_OF_MEMORY

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    try:
        CASES[name](Cure(**json.loads(given[0])) if given else Cure())
    except tf.errors.ResourceExhaustedError:
        sys.exit(OUT_OF_MEMORY)
