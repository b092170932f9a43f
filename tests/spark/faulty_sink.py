"""``format("pymq-faulty")``: the sink, with one fault in one micro-batch.

Options of its own: ``fault``, one of ``FAULTS`` or ``OUTAGES``; ``faultBatch``, the number of the
micro-batch; and ``faultMark``, a file that must not exist yet: what has failed once does not fail
again. For an outage it is also what tells the test to end the brokers; the sink goes on when the
test has made a file of the same name and ``OVER``.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_pymq.data_source import PymqSource
from pyspark_pymq.sink.exactly_once import Staged
from pyspark_pymq.sink.writer import PymqStreamWriter, Written

FAULTS = (
    "task fails at its first row",
    "task fails in the middle",
    "task fails when all is staged",
    "commit fails before it asks",
    "commit fails when it was answered",
)
#: The brokers end at these moments; after the second the answer of the commit is lost, too.
OUTAGES = ("brokers end before the commit", "brokers end after the commit")
OUTAGE_S, OVER = 240.0, ".over"
_OPTIONS = ("fault", "faultbatch", "faultmark")


class Fault(Exception):
    """What was to happen."""


class FaultySource(PymqSource):
    """The data source with a sink that fails."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._fault = tuple(given.pop(name, "") for name in _OPTIONS)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "pymq-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PymqStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        faulty = FaultyWriter(writer._options, writer._columns, writer._plan)
        faulty.fault = self._fault
        return faulty


class FaultyWriter(PymqStreamWriter):
    """The sink's writer, which fails once."""

    fault: tuple[str, ...]

    def _fail(self, fault: str, number: int) -> None:
        wanted, batch, mark = self.fault
        if (fault, str(number)) == (wanted, batch):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            if fault in OUTAGES:
                _await(mark + OVER)
            if fault != OUTAGES[0]:
                raise Fault(fault)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written | Staged:
        number = self._identity().number

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                self._fail("task fails at its first row", number)
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                self._fail("task fails in the middle", number)
                yield batch.slice(half)

        done = super().write(rows())
        self._fail("task fails when all is staged", number)
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._fail("commit fails before it asks", batchId)
        self._fail("brokers end before the commit", batchId)
        super().commit(messages, batchId)
        self._fail("commit fails when it was answered", batchId)
        self._fail("brokers end after the commit", batchId)


def _await(path: str) -> None:
    deadline_s = time.monotonic() + OUTAGE_S
    while not os.path.exists(path):
        assert time.monotonic() < deadline_s, f"nobody has made {path}"
        time.sleep(0.01)
