"""The clients for programs without asyncio: the same names, arguments and behaviour, blocking.

::

    from pymq import Message, blocking

    with blocking.Producer("127.0.0.1:9876") as producer:
        producer.send(Message("flights", b"..."))
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymq.client.threaded.admin import Admin
    from pymq.client.threaded.batcher import Batcher
    from pymq.client.threaded.consumer import Consumer
    from pymq.client.threaded.producer import Producer
    from pymq.client.threaded.pull_consumer import PullConsumer
    from pymq.client.threaded.reader import Reader
    from pymq.client.threaded.simple_consumer import SimpleConsumer
    from pymq.client.threaded.transaction import Transaction
else:
    # As in ``pymq``: a program pays for the clients that it uses.
    _HOME_OF = {
        "Admin": "admin",
        "Batcher": "batcher",
        "Consumer": "consumer",
        "Producer": "producer",
        "PullConsumer": "pull_consumer",
        "Reader": "reader",
        "SimpleConsumer": "simple_consumer",
        "Transaction": "transaction",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pymq.extras import imported

        home = imported(f"pymq.client.threaded.{_HOME_OF[name]}")
        value = globals()[name] = getattr(home, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Admin",
    "Batcher",
    "Consumer",
    "Producer",
    "PullConsumer",
    "Reader",
    "SimpleConsumer",
    "Transaction",
]
