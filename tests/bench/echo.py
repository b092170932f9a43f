"""``pymq up`` whose broker answers sends unread and unstored: what its server alone can do.

The limit for any broker behind this server: frames are cut and answers are gathered and written as
ever, but of a send only the opaque number in its header is looked at.
"""

import sys

from pymq.broker.handlers.send import SendHandlers
from pymq.cli.main import main
from pymq.net import server
from pymq.net.dispatcher import Request
from pymq.protocol import framing
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command, decode_header
from pymq.protocol.headers.send import encode_success

_SEND_PREFIX = f'{{"code":{int(RequestCode.SEND_MESSAGE_V2)},'.encode()
_OPAQUE = b'"opaque":'
_MESSAGE_ID = "7F00000100002A9F0000000000000000"


def _decode_unread(form: int, header: bytes, body: bytes | memoryview) -> Command:
    if not header.startswith(_SEND_PREFIX):
        return decode_header(form, header, body)
    at = header.rindex(_OPAQUE) + len(_OPAQUE)
    opaque = int(header[at : header.index(b",", at)])
    return Command(RequestCode.SEND_MESSAGE_V2, None, body, None, opaque)


def _echo(self: SendHandlers, request: Request) -> None:
    request.respond_encoded(0, encode_success(request.command.opaque, _MESSAGE_ID, 0, 0))


if __name__ == "__main__":
    server.PlainRunReader = lambda: None  # type: ignore[attr-defined, assignment]
    framing.decode_header = _decode_unread  # type: ignore[attr-defined]
    SendHandlers.send = _echo  # type: ignore[method-assign]
    sys.exit(main())
