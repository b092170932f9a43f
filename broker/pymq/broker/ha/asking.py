"""Single questions from one broker of a group to another."""

from pymq.broker.single_question import ask_alone
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import HaInfo

CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 5.0


async def ask_once(
    address: str, code: int, fields: dict[str, str] | None = None, *, name: str
) -> Command:
    """Ask a broker at ``host:port`` over a connection of its own.

    Raises:
        PymqError: there is no answer, or a refusal.
    """
    return await ask_alone(
        *(address, code, fields, name),
        connect_timeout_s=CONNECT_TIMEOUT_S,
        timeout_s=REQUEST_TIMEOUT_S,
    )


async def ask_ha_info(master: str, info: HaInfo | None = None) -> HaInfo:
    """Ask a master where its slaves connect; or tell a slave that of this master, ``info``.

    Raises:
        PymqError: there is no answer, or a refusal.
    """
    answer = await ask_once(
        master,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        None if info is None else info.to_fields(),
        name="where slaves connect",
    )
    return HaInfo.from_fields(answer.fields)
