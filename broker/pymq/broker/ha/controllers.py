"""A broker's connections to the controllers of its group.

Heartbeats go to all of them, as a controller may become the leader at any time; everything else
goes to the one that leads.

Source: RocketMQ BrokerOuterAPI, ReplicasManager (updateControllerMetadata,
scanAvailableControllerAddresses).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import ControllerMetadataResponse
from pymq.protocol.headers.codec import Header

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 3.0
#: A controller that cannot be reached is tried again after this.
RETRY_S = 0.5
#: A connection that was replaced is closed after this: by then heartbeats have come over the new
#: one, so that its end is not taken for that of this broker.
RETIRE_S = 5.0


def one_way(code: int, header: Header) -> Command:
    """Return a request that wants no answer."""
    return Command(code, header.to_fields(), language=LanguageCode.JAVA)


class NoController(PymqError):
    """No controller leads, or none can be reached."""

    retriable = True


class Controllers:
    """Reaches them, and finds out who leads.

    Args:
        addresses: ``host:port`` of each.
        greeting: returns what each is told first on a new connection; None: nothing. They know by
            that who asks them.
    """

    def __init__(
        self, addresses: Sequence[str], greeting: Callable[[], Command | None] = lambda: None
    ) -> None:
        self._addresses = list(addresses)
        self._greeting = greeting
        self._channels: dict[str, AsyncChannel] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._leader: str | None = None
        #: Controllers whose connection has left a request without an answer.
        self._doubted: set[str] = set()
        self._retired: list[AsyncChannel] = []
        self._said = SaidOnce(_log)
        self._tasks = Tasks("controllers")

    def start(self) -> None:
        """Begin to stay connected."""
        for address in self._addresses:
            self._tasks.start(f"to {address}", self._stay_connected(address))

    async def _stay_connected(self, address: str) -> None:
        while True:
            try:
                if address in self._doubted:
                    await self._renew(address)
                else:
                    await self._connect(address)
            except PymqError as error:
                self._said.warn(
                    address,
                    "controller %s cannot be reached: %s; trying again every %g s",
                    address,
                    error,
                    RETRY_S,
                )
            else:
                self._said.over(address, "controller %s can be reached again", address)
            await asyncio.sleep(RETRY_S)

    async def _connect(self, address: str) -> AsyncChannel:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or not channel.is_open:
                channel = await AsyncChannel.connect(address, CONNECT_TIMEOUT_S)
                self._greet(channel)
                self._channels[address] = channel
            return channel

    def _greet(self, channel: AsyncChannel) -> None:
        greeting = self._greeting()
        if greeting is not None:
            channel.send_one_way(greeting)

    async def _renew(self, address: str) -> None:
        """Replace a connection by a new one if a request is answered over that.

        After a cut of the network, TCP sends again what was lost with pauses that have grown with
        the cut. A controller that is merely frozen answers over neither, and keeps the old one.

        Raises:
            PymqError: it is not.
        """
        fresh = await AsyncChannel.connect(address, CONNECT_TIMEOUT_S)
        try:
            await self._ask_who_leads(fresh)
        except BaseException:
            fresh.close()
            raise
        self._greet(fresh)
        old, self._channels[address] = self._channels.get(address), fresh
        self._doubted.discard(address)
        if old is not None:
            self._retired.append(old)
            asyncio.get_running_loop().call_later(RETIRE_S, self._retire, old)

    def _retire(self, channel: AsyncChannel) -> None:
        channel.close()
        if channel in self._retired:
            self._retired.remove(channel)

    @staticmethod
    async def _ask_who_leads(channel: AsyncChannel) -> Command:
        return await channel.request(
            Command(RequestCode.CONTROLLER_GET_METADATA_INFO, language=LanguageCode.JAVA),
            REQUEST_TIMEOUT_S,
            description="who leads the controllers",
        )

    def tell(self, code: int, header: Header) -> None:
        """Send a one-way request to every controller that is connected."""
        for channel in self._channels.values():
            if channel.is_open:
                channel.send_one_way(one_way(code, header))

    async def request(self, code: int, header: Header, body: bytes = b"") -> Command:
        """Ask the leader; return its answer, whatever its code.

        Raises:
            NoController: nobody leads; the request was not done.
            PymqError: there was no answer, so it is unknown whether it was done.
        """
        for _ in range(2):
            leader = self._leader or await self._find_leader()
            try:
                channel = await self._connect(leader)
            except PymqError as error:
                self._leader = None
                raise NoController(f"controller {leader}, who led, is gone: {error}") from error
            command = Command(code, header.to_fields(), body, language=LanguageCode.JAVA)
            try:
                answer = await channel.request(
                    command, REQUEST_TIMEOUT_S, description=f"controller request {code}"
                )
            except PymqError:
                self._doubted.add(leader)
                self._leader = None
                raise
            if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                return answer
            self._leader = None
        raise NoController("the controllers are choosing their leader")

    async def _find_leader(self) -> str:
        reasons = []
        for address in self._addresses:
            try:
                channel = await self._connect(address)
                answer = await self._ask_who_leads(channel)
                found = ControllerMetadataResponse.from_fields(answer.fields)
            except PymqError as error:
                self._doubted.add(address)
                reasons.append(f"{address}: {error}")
                continue
            if answer.code == ResponseCode.SUCCESS and found.leader_address:
                self._leader = found.leader_address
                return self._leader
            reasons.append(f"{address}: it knows no leader")
        raise NoController(f"no controller leads ({'; '.join(reasons)})")

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        for channel in (*self._channels.values(), *self._retired):
            channel.close()
        self._channels.clear()
        self._retired.clear()
