"""The queue that ``--queue`` names."""

from collections.abc import Sequence

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue


def choose(
    queues: Sequence[MessageQueue], topic: str, text: str, *, use: str = "readable"
) -> MessageQueue:
    """Return one of a topic's queues.

    Args:
        queues: those that can be used.
        topic: whose.
        text: ``3``, or ``broker-a:3`` where several brokers have one of that number.
        use: what they can be, for the error message.

    Raises:
        ConfigurationError: it names no queue of the topic, or several.
    """
    broker, colon, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()):
        raise ConfigurationError(f"--queue {text!r}: expected a queue id, such as 3 or broker-a:3")
    found = [
        queue
        for queue in queues
        if queue.queue_id == int(number) and (not colon or queue.broker_name == broker)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in found or queues)
    what = "is on several brokers, choose one" if found else f"is not {use}"
    raise ConfigurationError(f"--queue {text!r} of topic {topic!r} {what}: {known}")
