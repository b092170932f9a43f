"""Queue offsets of groups: as they are kept, and as they are sent and saved."""

from typing import TypeAlias

SEPARATOR = "@"
#: (topic, group) -> queue id -> queue offset.
Table: TypeAlias = dict[tuple[str, str], dict[int, int]]
#: ((topic, group), queue id).
Place: TypeAlias = tuple[tuple[str, str], int]


def places_of(table: Table) -> set[Place]:
    """Return where a table has offsets."""
    return {(key, queue_id) for key, queues in table.items() for queue_id in queues}


def joined(table: Table) -> dict[str, dict[int, int]]:
    """Return a table as it is sent: ``topic@group`` -> queue id -> queue offset."""
    return {f"{topic}{SEPARATOR}{group}": queues for (topic, group), queues in table.items()}


def split(table: dict[str, dict[int, int]]) -> Table:
    """Return what ``joined`` was given, a copy; names without a separator are left out."""
    parts = ((key.partition(SEPARATOR), queues) for key, queues in table.items())
    return {
        (topic, group): dict(queues) for (topic, separator, group), queues in parts if separator
    }
