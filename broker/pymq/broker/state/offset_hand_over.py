"""What of the offsets of a slave counts at its master: those of the places that have moved there.

A slave names them when it is asked for all offsets: ``topic@group`` -> ids of queues.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

from pymq.broker.state.offset_places import SEPARATOR, Place, Table

_log = logging.getLogger(__name__)


def merged(ours: Table, theirs: Table, chosen: set[Place]) -> Table:
    """Return a copy of our table, in which the places chosen are as in theirs."""
    found = {
        key: {queue_id: offset for queue_id, offset in queues.items() if (key, queue_id) in chosen}
        for key, queues in theirs.items()
    }
    for key, queues in ours.items():
        kept = {one: offset for one, offset in queues.items() if (key, one) not in chosen}
        found[key] = found.get(key, {}) | kept
    return {key: queues for key, queues in found.items() if queues}


def warn_of_set_back(ours: Table, theirs: Table, *, but_not: Collection[str]) -> None:
    """Name the groups that are somewhere further in our table than in that of a slave."""
    groups = {
        group
        for (topic, group), queues in theirs.items()
        for queue_id, offset in ours.get((topic, group), {}).items()
        if queues.get(queue_id, offset) < offset
    }.difference(but_not)
    if groups:
        _log.warning(
            "%d consumer groups are set back to where they are at a slave that may have acted for "
            "this master: %.200s",
            len(groups),
            ", ".join(sorted(groups)),
        )


def joined_places(places: Iterable[Place]) -> dict[str, list[int]]:
    """Return places as they are sent."""
    found: dict[str, list[int]] = {}
    for (topic, group), queue_id in sorted(places):
        found.setdefault(f"{topic}{SEPARATOR}{group}", []).append(queue_id)
    return found


def split_places(joined: Mapping[str, list[int]] | None) -> set[Place]:
    """Return what ``joined_places`` was given; no places for None."""
    parts = ((key.partition(SEPARATOR), ids) for key, ids in (joined or {}).items())
    return {((topic, group), one) for (topic, at, group), ids in parts if at for one in ids}
