"""Ready-made ways to divide a topic's queues among a group's members: see each of them.

::

    from pymq import Consumer, allocation

    Consumer("127.0.0.1:9876", "billing", allocation=allocation.consistent_hash())
"""

from pymq.client.group.allocation import (
    Allocation,
    averagely,
    by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
)

__all__ = [
    "Allocation",
    "averagely",
    "by_circle",
    "by_config",
    "by_machine_room",
    "consistent_hash",
    "machine_room_nearby",
]
