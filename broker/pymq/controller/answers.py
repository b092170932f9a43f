"""What the handlers of the controller have in common."""

from pymq.controller.groups import Outcome
from pymq.net.dispatcher import Request
from pymq.protocol.command import Command


def response(
    request: Request, outcome: Outcome, fields: dict[str, str], body: bytes = b""
) -> Command:
    """Return the answer that an outcome gives."""
    return request.response(outcome.code, outcome.remark, fields, body)
