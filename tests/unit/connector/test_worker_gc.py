"""The garbage collector in a task's process."""

import gc

from pyspark_pymq.worker_gc import spare_imports


def test_what_is_there_is_passed_over_once() -> None:
    gc.unfreeze()
    spare_imports.cache_clear()
    try:
        spare_imports()
        assert gc.get_freeze_count() > 10_000
        gc.unfreeze()
        spare_imports()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
