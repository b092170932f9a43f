"""Tells brokers who their master is, until they have heard it.

RocketMQ's controller sends NOTIFY_BROKER_ROLE_CHANGED one-way, and a broker that missed it asks by
itself within five seconds. Here the broker's answer is waited for, and it is told again without
one: both kinds of brokers answer.

Source: RocketMQ ControllerManager.NotifyService.
"""

import asyncio
import logging

from pymq.controller.groups import GroupState
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.tasks import Tasks
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import RoleChangedRequest

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0
#: A broker changes its role before it answers: cuts its log, waits for its queues.
ANSWER_TIMEOUT_S = 3.0
RETRY_S = 0.3
#: A broker that has not answered by then finds out by itself.
ATTEMPT_COUNT = 10


class Notices:
    """What brokers are being told; for one event loop."""

    def __init__(self) -> None:
        self._tasks = Tasks("controller: notices")
        #: ``host:port`` -> the state that its broker has to hear, and whoever tells it.
        self._pending: dict[str, tuple[GroupState, asyncio.Task[None]]] = {}

    def tell(self, state: GroupState, broker_id: int) -> None:
        """Tell one broker of a group who is master; an older notice to it is dropped."""
        address = state.address_of(broker_id)
        if address is None or state.master is None:
            return
        pending = self._pending.get(address)
        if pending is not None:
            if pending[0].master_epoch >= state.master_epoch:
                return
            pending[1].cancel()
        task = self._tasks.start(f"to {address}", self._tell(state, address))
        self._pending[address] = (state, task)
        task.add_done_callback(lambda done: self._ended(address, done))

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        pending = self._pending.get(address)
        if pending is not None and pending[1] is task:
            del self._pending[address]

    async def _tell(self, state: GroupState, address: str) -> None:
        what = f"{state.name}: master {state.master} of epoch {state.master_epoch}"
        failure: PymqError | None = None
        for _ in range(ATTEMPT_COUNT):
            try:
                await _ask(address, _command(state))
            except PymqError as error:
                # A broker may be elected before it listens.
                _log.debug("%s has not heard of %s: %s", address, what, error)
                failure = error
                await asyncio.sleep(RETRY_S)
            else:
                _log.info("%s knows %s", address, what)
                return
        _log.warning(
            "%s was told %d times in vain of %s: %s", address, ATTEMPT_COUNT, what, failure
        )

    async def close(self) -> None:
        """Stop telling; idempotent."""
        await self._tasks.close()


def _command(state: GroupState) -> Command:
    header = RoleChangedRequest(
        master_address=state.address_of(state.master),
        master_broker_id=state.master,
        master_epoch=state.master_epoch,
        sync_state_set_epoch=state.in_sync.epoch,
    )
    return Command(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        header.to_fields(),
        state.in_sync.encode(),
        language=LanguageCode.JAVA,
    )


async def _ask(address: str, command: Command) -> None:
    channel = await AsyncChannel.connect(address, CONNECT_TIMEOUT_S)
    try:
        answer = await channel.request(
            command, ANSWER_TIMEOUT_S, description="NOTIFY_BROKER_ROLE_CHANGED"
        )
    finally:
        channel.close()
    if answer.code != ResponseCode.SUCCESS:
        raise PymqError(f"code {answer.code}, {answer.remark or 'no remark'}")
