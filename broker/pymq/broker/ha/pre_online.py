"""What a broker of a classic group does before clients find it (``enableSlaveActingMaster``).

A master that was away takes over what its slaves know since: a slave that acted for it has what
consumers have committed meanwhile. Each slave is told first where the log is, so that it follows
when the master is online. A slave that starts waits until it follows the master, if there is one.

RocketMQ's brokers wait for as long as it takes; here, there is an end to it, and the log says so.

Source: RocketMQ BrokerPreOnlineService.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from pymq.broker.ha.acting import MASTER_ID
from pymq.broker.ha.asking import ask_ha_info, ask_once
from pymq.broker.ha.group_watch import GroupWatch
from pymq.errors import BrokerError, PymqError
from pymq.protocol.codes import RequestCode
from pymq.protocol.headers.replication import HaInfo

_log = logging.getLogger(__name__)

#: How long a name server, and then each slave, is tried, and how long to pause in between.
SERVERS_S, PEER_S, PAUSE_S = 10.0, 30.0, 0.2
#: How long a slave may take to follow.
FOLLOW_S = 10.0


class MasterPreOnline:
    """Takes over from the slaves.

    Args:
        watch: knows who they are.
        info: what they are told.
        follower_count: returns how many slaves follow this master's log.
        take_offsets, take_delays, take_timers: take over a body of consumer offsets, and of the
            progress of delayed messages and of timers, unless this broker's are newer.
    """

    def __init__(
        self,
        watch: GroupWatch,
        info: HaInfo,
        follower_count: Callable[[], int],
        *,
        take_offsets: Callable[[bytes], Awaitable[None]],
        take_delays: Callable[[bytes], object],
        take_timers: Callable[[bytes], object],
    ) -> None:
        self._watch = watch
        self._info = info
        self._follower_count = follower_count
        self._told = 0
        self._take_offsets = take_offsets
        self._take_delays = take_delays
        self._take_timers = take_timers

    async def run(self) -> None:
        """Return when everything is taken over, or cannot be."""
        members = await members_of(self._watch)
        for broker_id, address in sorted(members.items()):
            if broker_id == MASTER_ID:
                continue  # a name server has not forgotten this broker yet
            self._told += 1
            if not await _tried(functools.partial(self._take_if_there, broker_id, address), PEER_S):
                _log.error(
                    "slave %d at %s may have acted for this master, and what was committed there "
                    "could not be taken over within %g s: consumers may get messages again",
                    broker_id,
                    address,
                    PEER_S,
                )

    async def _take_if_there(self, broker_id: int, address: str) -> None:
        """Take over from one slave, unless it is gone, too.

        Raises:
            PymqError: it does not answer, or does not follow.
        """
        try:
            await self._take(address)
        except PymqError:
            members = await self._watch.members()
            if members is None or members.get(broker_id) == address:
                raise
            self._told -= 1
            _log.info("slave %d at %s is gone, too", broker_id, address)

    async def _take(self, slave: str) -> None:
        """Take over from one slave.

        Raises:
            PymqError: it does not answer, or does not follow.
        """
        await ask_ha_info(slave, self._info)
        # Not by their addresses: who is reached there may come from elsewhere.
        if not await _comes_true(lambda: self._follower_count() >= self._told, FOLLOW_S):
            raise PymqError(f"{slave} does not follow")
        delays = await ask_once(slave, RequestCode.GET_ALL_DELAY_OFFSET, name="delay offsets")
        offsets = await ask_once(slave, RequestCode.GET_ALL_CONSUMER_OFFSET, name="offsets")
        timers = await _asked_timers(slave)
        await self._take_offsets(bytes(offsets.body))
        self._take_delays(bytes(delays.body))
        self._take_timers(timers)
        _log.info("what slave %s has kept meanwhile is taken over", slave)


class SlavePreOnline:
    """Waits until a slave follows its master.

    Args:
        watch: knows whether there is one.
        group: is told who is alive.
        is_following: returns whether the slave follows it.
    """

    def __init__(
        self,
        watch: GroupWatch,
        group: Callable[[dict[int, str]], None],
        is_following: Callable[[], bool],
    ) -> None:
        self._watch = watch
        self._group = group
        self._is_following = is_following

    async def run(self) -> None:
        """Return when it does, or does not in time, or there is none."""
        members = await members_of(self._watch)
        if MASTER_ID not in members:
            return  # who acts is decided when this broker is registered
        self._group(members)
        if not await _comes_true(self._is_following, FOLLOW_S):
            _log.warning("this slave goes online, and does not follow its master yet")


async def _asked_timers(slave: str) -> bytes:
    """Return how far a slave is with timers; nothing if it has none, as RocketMQ 4.9's.

    Raises:
        PymqError: there is no answer.
    """
    try:
        answer = await ask_once(slave, RequestCode.GET_TIMER_CHECK_POINT, name="timers")
    except BrokerError:
        return b""
    return bytes(answer.body)


async def members_of(watch: GroupWatch) -> dict[int, str]:
    """Return who is alive, as soon as a name server says it; nobody, if none does in time."""
    found: dict[int, str] = {}

    async def ask() -> None:
        members = await watch.members()
        if members is None:
            raise PymqError("no name server says it")
        found.update(members)

    await _tried(ask, SERVERS_S)
    return found


async def _tried(work: Callable[[], Awaitable[None]], timeout_s: float) -> bool:
    """Try until it is done, or time is up; return whether it is."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        try:
            await work()
        except PymqError as error:
            _log.debug("before this broker is online: %s", error)
            if loop.time() > deadline_s:
                return False
        else:
            return True
        await asyncio.sleep(PAUSE_S)


async def _comes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            return False
        await asyncio.sleep(0.02)
    return True
