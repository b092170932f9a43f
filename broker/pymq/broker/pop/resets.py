"""Groups that pop and are set to other offsets by an administrator.

Source: RocketMQ PopMessageProcessor.resetPopOffset.
"""

from pymq.broker.pop.checkpoint import GroupQueue
from pymq.broker.pop.progress import PopProgress
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.order_info import OrderTable


class PopResets:
    """Sets groups to other offsets when they pop next.

    What is in flight stays in flight: it comes back to the group if nobody acknowledges it.
    """

    def __init__(
        self,
        offsets: OffsetTable,
        progress: PopProgress,
        orders: OrderTable,
    ) -> None:
        self._offsets = offsets
        self._progress = progress
        self._orders = orders

    def take(self, queue: GroupQueue) -> None:
        """Set a group to another offset in a queue, if it is to be."""
        topic, group, queue_id = queue
        offset = self._offsets.take_reset(group, topic, queue_id)
        if offset is not None:
            self._progress.restart(queue, offset)
            self._orders.clear(queue)
