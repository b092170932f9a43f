"""What a handler is, and how it says no."""

from collections.abc import Callable

from pymq.errors import BrokerError
from pymq.net.server import ServerConnection
from pymq.protocol.command import Command

#: Takes a request; returns its response, or None when it answers later or never. It says no
#: by raising a BrokerError, which becomes the response.
Handler = Callable[[ServerConnection, Command], Command | None]


def refusal(code: int, remark: str) -> BrokerError:
    """Return the error whose code and remark the client will get.

    Args:
        code: response code.
        remark: what is wrong, where, and what to do, in one sentence.
    """
    return BrokerError.by_code.get(code, BrokerError)(remark, code=code, remark=remark)
