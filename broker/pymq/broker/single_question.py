"""One question to another server, over a connection that is made for it."""

from pymq.errors import BrokerError
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import LanguageCode, ResponseCode
from pymq.protocol.command import Command


async def ask_alone(
    address: str,
    code: int,
    fields: dict[str, str] | None,
    name: str,
    *,
    connect_timeout_s: float,
    timeout_s: float,
) -> Command:
    """Return the answer of a server at ``host:port``.

    Args:
        address: of the server.
        code, fields: of the request.
        name: what is asked for, for error messages.
        connect_timeout_s, timeout_s: how long to wait for the connection, and for the answer.

    Raises:
        ConnectionFailed, RequestTimeout: it does not answer.
        BrokerError: it refuses.
        LocalProtocolError: the request cannot be sent.
    """
    channel = await AsyncChannel.connect(address, connect_timeout_s)
    try:
        command = Command(code, fields, language=LanguageCode.JAVA)
        answer = await channel.request(command, timeout_s, description=name)
    finally:
        channel.close()
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError.of(answer.code, answer.remark, peer=address, request=name)
    return answer
