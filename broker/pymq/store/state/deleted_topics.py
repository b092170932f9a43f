"""What a state file says of deleted topics: up to where it knows their deletions.

A topic is deleted for good once ``queues.json`` says that. A file about what groups have done in
topics is saved later; if a crash comes in between, it still tells of the topic that was deleted.
So it says, as ``queues.json`` does, up to which physical offset the records of each topic are
deleted. Of a topic of which ``queues.json`` says more, the file is older than the deletion.
"""

from collections.abc import Mapping

#: Of the member of the file's JSON object: topic -> end of its deleted records.
NAME = "deletedTopics"


def told_deletions(value: object) -> dict[str, int] | None:
    """Return what the parsed contents of a file say; None: nothing, as a file of RocketMQ."""
    told = value.get(NAME) if isinstance(value, dict) else None
    if not isinstance(told, dict):
        return None
    return {str(topic): end for topic, end in told.items() if isinstance(end, int)}


def deleted_since(recorded: Mapping[str, int], told: Mapping[str, int] | None) -> set[str]:
    """Return the topics that were deleted after a file was saved.

    Args:
        recorded: what ``queues.json`` says.
        told: what the file says; None: nothing, and all of it is believed.
    """
    if told is None:
        return set()
    return {topic for topic, end in recorded.items() if end > told.get(topic, -1)}
