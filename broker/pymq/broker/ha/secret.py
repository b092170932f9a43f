"""What comes first on a connection of the HA port: TLS, and the proofs of the secret.

Neither side has said anything by then that the other one could act on: the protocol that uses the
connection afterwards gets it as if it were new.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from pymq.broker.ha.security import Security
from pymq.errors import RemoteProtocolError
from pymq.protocol.replication_secret import (
    FRAME_BYTES,
    MASTER_NONCE_BYTES,
    SLAVE_NONCE_BYTES,
    WORD_BYTES,
    Refusal,
    encode_challenge,
    encode_hello,
    encode_proof,
    encode_refusal,
    encode_welcome,
    is_challenge,
    is_known_hello,
    is_same,
    refusal_of,
)

#: A slave gives up a master to which it is not connected by then.
CONNECT_TIMEOUT_S = 3.0
#: A slave that is refused has this long to read why, before it is disconnected.
FAREWELL_S = 1.0

_NO_PROOF = (
    "it does not prove that it knows the secret (pymqHaSecret): it is a broker of RocketMQ, or one "
    "of pymq without a secret, or not the master at all; set the same pymqHaSecret there or, if it "
    "is RocketMQ's, list its address in pymqHaNetworks here"
)
_OTHER_SECRET = (
    "it proves another secret than this slave's, and may not be the master: nothing is taken from "
    "it; set the same pymqHaSecret at both"
)


class Inbox(asyncio.Protocol):
    """Receives what is said before a connection is handed over.

    Args:
        on_made: called when there is a connection.

    Attributes:
        host: address of the peer.
    """

    def __init__(self, on_made: Callable[["Inbox"], None] = lambda inbox: None) -> None:
        self._on_made = on_made
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        #: While nothing may be received, and until TLS has been agreed upon.
        self._socket: socket.socket | None = None
        self._is_accepting = self._is_handed_over = False
        self._data = bytearray()
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None
        self.host = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        if self._socket is not None:
            return  # once more, with TLS
        name = transport.get_extra_info("peername")
        self.host = name[0] if name else "?"
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Keep what has arrived."""
        self._data += data
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._lost = exc or ConnectionResetError("the connection was closed")
        self._arrived.set()

    def hold(self) -> None:
        """Receive nothing until TLS is accepted: what is received before would be lost to it.

        uvloop does not pause a connection that it has just made, and reads on. So the socket is
        taken away from the transport.
        """
        assert self._transport is not None
        transport, self._transport = self._transport, None
        held = transport.get_extra_info("socket")
        self._socket = socket.fromfd(held.fileno(), held.family, held.type)
        transport.set_protocol(asyncio.Protocol())  # it ends, and the connection does not
        transport.abort()

    async def accept_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """Speak TLS from now on, as the server, on a connection that was held.

        Raises:
            OSError: there is no agreement, or it takes too long; among them ``ssl.SSLError``.
        """
        assert self._socket is not None
        self._is_accepting = True  # the loop closes the socket
        await self._loop.connect_accepted_socket(
            lambda: self, self._socket, ssl=context, ssl_handshake_timeout=timeout_s
        )

    async def start_tls(
        self, context: ssl.SSLContext, timeout_s: float, *, server_name: str
    ) -> None:
        """Speak TLS from now on, as the client.

        Args:
            server_name: whose certificate is expected.

        Raises:
            OSError: there is no agreement, or it takes too long; among them ``ssl.SSLError``.
        """
        assert self._transport is not None
        transport = await self._loop.start_tls(
            self._transport,
            self,
            context,
            server_hostname=server_name,
            ssl_handshake_timeout=timeout_s,
        )
        if transport is None:
            raise ConnectionResetError("the connection was closed")
        self._transport = transport

    async def read(self, count: int) -> bytes:
        """Return the next bytes, and remove them.

        Raises:
            OSError: the connection was closed before.
        """
        while len(self._data) < count:
            if self._lost is not None:
                raise self._lost
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._data[:count])
        del self._data[:count]
        return data

    def write(self, data: bytes) -> None:
        """Send something."""
        if self._transport is not None:
            self._transport.write(data)

    def hand_over(self, protocol: asyncio.BaseProtocol, read: bytes = b"") -> None:
        """Have a protocol use the connection from now on.

        Args:
            read: what was read already, and is meant for it.

        Raises:
            OSError: it was closed.
        """
        assert self._transport is not None
        if self._lost is not None:
            raise self._lost
        transport, self._transport = self._transport, None
        self._is_handed_over = True
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        data = read + self._data
        if data:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    @property
    def is_empty(self) -> bool:
        """Has nothing arrived that was not read?"""
        return not self._data

    async def wait_closed(self) -> None:
        """Wait until the peer has closed the connection; forget what it sends."""
        while self._lost is None:
            self._data.clear()
            self._arrived.clear()
            await self._arrived.wait()

    def abort(self) -> None:
        """Close the connection at once, unless it was handed over."""
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None and not self._is_handed_over:
            with suppress(OSError):  # it was closed
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._is_accepting:
                self._socket.close()


# ------------------------------------------------------------------------------- at the master


async def check_slave(inbox: Inbox, secret: bytes | None, word: bytes) -> Refusal | None:
    """Have a slave that has said hello prove that it knows the secret, and prove that we do.

    Args:
        word: the first word of its hello.

    Returns:
        Why it is refused, which it is still to be told; None: it has proven it.

    Raises:
        OSError: it has closed the connection.
    """
    if secret is None:
        return Refusal.NO_SECRET
    if not is_known_hello(word):
        return Refusal.OTHER_VERSION
    hello = word + await inbox.read(FRAME_BYTES - len(word))
    challenge = encode_challenge(secrets.token_bytes(MASTER_NONCE_BYTES))
    inbox.write(challenge)
    proof = await inbox.read(FRAME_BYTES)
    if not is_same(proof, encode_proof(secret, hello, challenge)):
        return Refusal.WRONG_SECRET
    inbox.write(encode_welcome(secret, hello, challenge, proof))
    return None


async def send_away(inbox: Inbox, reason: Refusal) -> None:
    """Tell a slave why it is refused, and give it time to read that."""
    inbox.write(encode_refusal(reason))
    try:
        async with asyncio.timeout(FAREWELL_S):
            await inbox.wait_closed()
    except TimeoutError:
        pass


# -------------------------------------------------------------------------------- at the slave


_F = TypeVar("_F", bound=asyncio.BaseProtocol)


async def connect(host: str, port: int, security: Security, make: Callable[[], _F]) -> _F:
    """Connect to a master, prove the secret and have it proven; return what uses the connection.

    Args:
        make: makes that.

    Raises:
        OSError, TimeoutError: there is no connection.
        RemoteProtocolError: the master has proven nothing, or refuses us.
    """
    inbox = Inbox()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        await loop.create_connection(lambda: inbox, host, port)
    try:
        if security.secret is not None and not security.lists(inbox.host):
            try:
                async with asyncio.timeout(security.handshake_s):
                    await _agree(inbox, host, security, security.secret)
            except TimeoutError as error:
                raise RemoteProtocolError(_NO_PROOF) from error
        if not inbox.is_empty:
            raise RemoteProtocolError("it speaks before it is spoken to: this is not a master")
        follower = make()
        inbox.hand_over(follower)
    finally:
        inbox.abort()
    return follower


async def _agree(inbox: Inbox, host: str, security: Security, secret: bytes) -> None:
    if security.tls is not None:
        name = security.tls_name or host
        try:
            await inbox.start_tls(security.tls(), security.handshake_s, server_name=name)
        except ssl.SSLCertVerificationError as error:
            raise RemoteProtocolError(
                f"its certificate is not to be trusted: {error.verify_message}; see which "
                "authority made it (pymqHaTlsTrustCertPath) and for which name, expected "
                f"{name} (pymqHaTlsName, or else its address)"
            ) from error
        except OSError as error:
            raise RemoteProtocolError(
                f"it does not agree to TLS: {getattr(error, 'reason', None) or error}; set "
                "pymqHaTls=true at both, or at neither (its log says more)"
            ) from error
    try:
        await _prove(inbox, secret)
    except OSError as error:
        if security.tls is None or isinstance(error, TimeoutError):
            raise RemoteProtocolError(_NO_PROOF) from error
        # That it wants a certificate, a master says after the handshake, if it says it at all.
        raise RemoteProtocolError(
            "it closed the TLS connection without a proof of the secret (its log says why); if it "
            "wants a certificate of this slave (pymqHaTlsTrustCertPath there), set "
            "pymqHaTlsCertPath and pymqHaTlsKeyPath here"
        ) from error


async def _prove(inbox: Inbox, secret: bytes) -> None:
    hello = encode_hello(secrets.token_bytes(SLAVE_NONCE_BYTES))
    inbox.write(hello)
    challenge = await _answer(inbox)
    if not is_challenge(challenge[:WORD_BYTES]):
        raise RemoteProtocolError(_NO_PROOF)
    proof = encode_proof(secret, hello, challenge)
    inbox.write(proof)
    welcome = await _answer(inbox)
    if not is_same(welcome, encode_welcome(secret, hello, challenge, proof)):
        raise RemoteProtocolError(_OTHER_SECRET)


async def _answer(inbox: Inbox) -> bytes:
    """Return the master's next frame.

    Raises:
        RemoteProtocolError: it refuses us.
    """
    word = await inbox.read(WORD_BYTES)
    refusal = refusal_of(word)
    if refusal is not None:
        raise RemoteProtocolError(refusal.text)
    return word + await inbox.read(FRAME_BYTES - len(word))
