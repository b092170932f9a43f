"""Ready-made choices of a queue, for ``selector=`` of a producer's sends: see each of them.

::

    from pymq import Message, selectors

    producer.send(Message("orders", b"..."), selector=selectors.by_hash("4711"))
"""

from pymq.client.sending.selectors import at_random, by_hash, in_machine_room

__all__ = ["at_random", "by_hash", "in_machine_room"]
