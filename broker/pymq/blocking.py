"""The clients for programs without asyncio: the same names, arguments and behaviour, blocking.

::

    from pymq import Message, blocking

    with blocking.Producer("127.0.0.1:9876") as producer:
        producer.send(Message("flights", b"..."))
"""

from pymq.client.threaded import Consumer
from pymq.client.threaded_admin import Admin
from pymq.client.threaded_batcher import Batcher
from pymq.client.threaded_producer import Producer
from pymq.client.threaded_pull_consumer import PullConsumer
from pymq.client.threaded_reader import Reader
from pymq.client.threaded_simple_consumer import SimpleConsumer
from pymq.client.threaded_transaction import Transaction

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
