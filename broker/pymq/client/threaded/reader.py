"""The blocking face of Reader, for scripts and threads."""

from typing import Any, Self

from pymq.client.pulling import reader as _reader
from pymq.client.threaded.blocking_face import blocking, constructor, iterated
from pymq.client.threaded.threaded_client import Threaded


class Reader(Threaded[_reader.Reader]):
    """``pymq.client.pulling.reader.Reader``, blocking; takes the same arguments.

    ::

        with Reader("127.0.0.1:9876") as reader:
            frames = [batch.to_pandas() for batch in reader.read("orders")]
    """

    @constructor(_reader.Reader)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: _reader.Reader(*args, **kwargs))

    def start(self) -> Self:
        """See the asyncio Reader."""
        self._start(self._client.start, "pymq reader")
        return self

    def close(self) -> None:
        """See the asyncio Reader."""
        self._stop(lambda client: client.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    queues = blocking(_reader.Reader.queues)
    read = iterated(_reader.Reader.read)
