"""Finds the id by which the controllers know a broker, and has them give it one at first.

Source: RocketMQ ReplicasManager (register, confirmNowRegisteringState).
"""

import asyncio
import logging

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.controllers import Controllers
from pymq.broker.ha.identity import Identity, IdentityFiles
from pymq.clock import Clock
from pymq.errors import BrokerError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    ApplyBrokerIdRequest,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
)

_log = logging.getLogger(__name__)

#: What to do about a broker whose id the controllers do not know.
REMOVED = (
    "It was removed there (mqadmin cleanBrokerMetadata), or their data are not those that gave "
    "the id: stop it, delete brokerIdentity (not the log) in its store, and start it; it gets "
    "another id"
)


async def find_id(
    controllers: Controllers,
    files: IdentityFiles,
    config: BrokerConfig,
    clock: Clock,
    *,
    address: str,
) -> int:
    """Return the id that the controllers know a broker by.

    Args:
        controllers: give it.
        files: keep it.
        config: the broker's name and cluster.
        clock: the time.
        address: ``host:port`` at which clients reach the broker.

    Raises:
        PymqError: they do not answer, or the file is another broker's.
    """
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, files.load)
    while found is None or found.check_code is not None:
        if found is None:
            found = Identity(
                config.cluster,
                config.name,
                await _ask_next_id(controllers, config),
                f"{address};{clock.wall_ms()}",
            )
            await loop.run_in_executor(None, files.save, found)
        if await _apply(controllers, found):
            found = Identity(found.cluster, found.name, found.broker_id)
            await loop.run_in_executor(None, files.save, found)
            _log.info("this broker has id %d in group %s", found.broker_id, found.name)
        else:
            await loop.run_in_executor(None, files.forget_application)
            found = None
    return found.broker_id


async def _ask_next_id(controllers: Controllers, config: BrokerConfig) -> int:
    answer = await controllers.request(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        NextBrokerIdRequest(cluster_name=config.cluster, broker_name=config.name),
    )
    check_done(answer, "this broker")
    return NextBrokerIdResponse.from_fields(answer.fields).next_broker_id


async def _apply(controllers: Controllers, wanted: Identity) -> bool:
    """Apply for an id; False: another broker has it."""
    assert wanted.check_code is not None
    answer = await controllers.request(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        ApplyBrokerIdRequest(
            cluster_name=wanted.cluster,
            broker_name=wanted.name,
            broker_id=wanted.broker_id,
            check_code=wanted.check_code,
        ),
    )
    if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
        return False
    check_done(answer, "an id for this broker")
    return True


def check_done(answer: Command, what: str) -> None:
    """Raise unless a controller has done what it was asked for.

    Raises:
        BrokerError: it has not.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError.of(answer.code, answer.remark, peer="the controller", request=what)
