"""The offsets of light groups in light queues, which may have a file of their own."""

from pymq.broker.state.offset_places import SEPARATOR, Table
from pymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, is_light


def is_light_place(key: tuple[str, str]) -> bool:
    """Return whether both the topic and the group of a key are light."""
    return is_light(key[1]) and is_light(key[0])


def light_offsets(offsets: Table) -> dict[str, int]:
    """Return the offsets of light groups in light queues, by ``topic@group``."""
    return {
        f"{topic}{SEPARATOR}{group}": queues[LIGHT_QUEUE_ID]
        for (topic, group), queues in offsets.items()
        if is_light_place((topic, group)) and LIGHT_QUEUE_ID in queues
    }
