"""What the log says of a start: where each queue resumes, and why. Pure."""

from collections.abc import Mapping

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds

#: The reason of queues that the checkpoint has, and the options do not choose.
NO_LONGER_CHOSEN = "no longer chosen"
#: Above this, queues are summed up by topic, broker and reason.
QUEUES_TOLD_MAX = 20


def start_told(
    offsets: Mapping[MessageQueue, int], reasons: Mapping[MessageQueue, str], bounds: Bounds
) -> str:
    """Return where queues are read from, why, and how many messages they hold from there on.

    Args:
        offsets: where each begins.
        reasons: why.
        bounds: of those whose brokers answer.
    """
    if not offsets:
        return "no queue yet"
    if len(offsets) <= QUEUES_TOLD_MAX:
        return "; ".join(
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id} at {offset} "
            f"({_why([queue], reasons[queue], offsets, bounds)})"
            for queue, offset in sorted(offsets.items())
        )
    groups: dict[tuple[str, str, str], list[MessageQueue]] = {}
    for queue in sorted(offsets):
        groups.setdefault((queue.topic, queue.broker_name, reasons[queue]), []).append(queue)
    return "; ".join(
        f"{len(queues)} queues of {topic} on {broker} at {min(offsets[q] for q in queues)}.."
        f"{max(offsets[q] for q in queues)} ({_why(queues, reason, offsets, bounds)})"
        for (topic, broker, reason), queues in groups.items()
    )


def _why(
    queues: list[MessageQueue], reason: str, offsets: Mapping[MessageQueue, int], bounds: Bounds
) -> str:
    if reason == NO_LONGER_CHOSEN:
        return reason  # They are not asked about.
    known = [queue for queue in queues if queue in bounds]
    if not known:
        return f"{reason}, its broker does not answer"
    count = sum(max(0, bounds[queue][1] - offsets[queue]) for queue in known)
    return f"{reason}, {count} messages follow"
