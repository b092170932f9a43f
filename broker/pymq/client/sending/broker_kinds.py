"""What brokers say of themselves: each is asked once per connection, when it matters.

Of each connection, because another broker may run at the address later.
"""

import weakref

from pymq.client.cluster.pool import ClientPool
from pymq.client.sending.preencoded_records import RecordsOffer
from pymq.client.sending.send_history import before_sending
from pymq.errors import ConfigurationError
from pymq.net.channel import AsyncChannel

#: What a broker does not say in this time, it is not waited for.
OFFER_S = 1.0


class BrokerKinds:
    """The kinds of one producer's brokers. For one event loop.

    Args:
        pool: asks them.

    Attributes:
        takers: does the broker take pre-encoded records? Of each connection that was asked.
    """

    def __init__(self, pool: ClientPool) -> None:
        self._pool = pool
        self.takers: weakref.WeakKeyDictionary[AsyncChannel, bool] = weakref.WeakKeyDictionary()

    async def takes_records(self, channel: AsyncChannel) -> bool:
        """Return whether a broker takes pre-encoded records.

        Raises:
            PymqError: it does not say.
        """
        if channel not in self.takers:
            kind = await self._pool.ask(channel, RecordsOffer(), timeout_s=OFFER_S)
            self.takers[channel] = kind.takes_records
        return self.takers[channel]

    async def check_version(self, channel: AsyncChannel, least: int, topic: str) -> None:
        """Accept a broker that knows what a message asks for.

        Raises:
            ConfigurationError: it would ignore it.
            PymqError: it does not say.
        """
        with before_sending():
            version = await self._pool.heartbeats.ask_version(channel)
        if version < least:
            raise ConfigurationError(
                f"{channel.peer} has version {version} of RocketMQ's protocol, expected at least "
                f"{least} (5.0) for delay_s and deliver_at: it would deliver the message to "
                f"{topic!r} at once. Use delay_level, or another broker"
            )
