"""The Python process a task runs in: Spark's worker, which runs one task after another."""

import functools
import gc


@functools.cache
def spare_imports() -> None:
    """Have the garbage collector pass over what is there by now; once per process.

    Spark collects all garbage after every task. With Spark, numpy and Arrow imported that looks at
    80,000 objects, none of them garbage, for 20 to 40 ms: more than a small micro-batch takes to
    read.
    """
    gc.freeze()
