"""The data source for processes that do not find pymq by themselves.

Files given with ``--py-files`` are on the path of executors. The processes in which Spark's driver
runs sources and sinks of streams look for them in a folder where they are not (``streaming_job``
below that of the files; Spark 4.0 to 4.3). They run on the driver's machine, so the driver's path
is good for them, too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def travelling_source(path: str) -> "type[DataSource]":
    """Return a data source that is pickled with its code, and imports ours from a path.

    Args:
        path: of a zip file with our packages, on the driver's machine.
    """
    from pyspark.sql.datasource import DataSource

    class TravellingSource(DataSource):
        """Does what ``PymqSource`` does; an instance holds nothing but options."""

        def __init__(self, options: Mapping[str, str]) -> None:
            super().__init__(options)  # type: ignore[arg-type]
            self.options = self._source().options

        @classmethod
        def name(cls) -> str:
            return "pymq"

        def _source(self) -> Any:
            import sys

            if path not in sys.path:
                sys.path.append(path)
            from pyspark_pymq.data_source import PymqSource

            return PymqSource(self.options)

        def schema(self) -> Any:
            return self._source().schema()

        def reader(self, schema: Any) -> Any:
            return self._source().reader(schema)

        def streamReader(self, schema: Any) -> Any:
            return self._source().streamReader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._source().writer(schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._source().streamWriter(schema, overwrite)

    # What belongs to the main program is pickled by value.
    TravellingSource.__module__ = "__main__"
    return TravellingSource
