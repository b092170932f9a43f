"""The clients for programs without asyncio: the same names, arguments and behaviour, blocking.

::

    from pymq import Message, blocking

    with blocking.Producer("127.0.0.1:9876") as producer:
        producer.send(Message("flights", b"..."))
"""

from pymq.client.threaded.admin import Admin
from pymq.client.threaded.batcher import Batcher
from pymq.client.threaded.consumer import Consumer
from pymq.client.threaded.producer import Producer
from pymq.client.threaded.pull_consumer import PullConsumer
from pymq.client.threaded.reader import Reader
from pymq.client.threaded.simple_consumer import SimpleConsumer
from pymq.client.threaded.transaction import Transaction

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
