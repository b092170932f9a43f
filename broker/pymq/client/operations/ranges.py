"""How far ranges of queues go within a number of bytes, an extension of pymq."""

from collections.abc import Sequence

from pymq.client.operations.operation import Operation, Plain
from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import FITTING_RANGES
from pymq.protocol.command import Command
from pymq.protocol.range_bodies import Fitting, FittingRanges, QueueRange, QueueRanges


def fitting_ranges(ranges: Sequence[QueueRange]) -> Operation[Sequence[Fitting]]:
    """What fits of ranges of queues, each within its bytes; in their order (479007).

    Brokers of RocketMQ do not know the request.

    Raises:
        LocalProtocolError: there are more than ``RANGES_MAX``.
    """

    def read(response: Command) -> Sequence[Fitting]:
        found = FittingRanges.decode(response.body).ranges()
        if len(found) != len(ranges):
            raise RemoteProtocolError(f"{len(found)} ranges, expected {len(ranges)}")
        return found

    request = Command(FITTING_RANGES, None, QueueRanges.of(ranges).encode())
    return Plain(request, f"how far {len(ranges)} ranges of queues go", read)
