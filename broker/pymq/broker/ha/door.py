"""The door of the HA port: who comes in, and who has to prove what before.

Connections that have proven nothing yet are few, and have little time. When there are too many, one
of them, drawn by lot, has to go for the one that comes: so nobody can keep the door shut by
connecting and saying nothing.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from pymq.broker.ha.secret import Inbox, check_slave, send_away
from pymq.broker.ha.security import Security
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.replication_secret import WORD_BYTES, Refusal, is_hello

_log = logging.getLogger(__name__)

#: Connections accepted in one turn of the event loop, between which the others are heard.
ACCEPTED_PER_TURN = 16
#: Connections that wait in the kernel to be accepted; more have to try again, a second later.
BACKLOG = 128
#: Addresses about which it is known what was said.
ADDRESS_COUNT_MAX = 1024
#: How TLS begins.
_TLS_RECORD = b"\x16\x03"

#: What the log of the master says, and what to do.
_REFUSED: dict[Refusal, tuple[str, str]] = {
    Refusal.NO_SECRET: (
        "it wants this master to prove a secret, and there is none here",
        "set the same pymqHaSecret here, or list this master's address in pymqHaNetworks there",
    ),
    Refusal.PROOF_WANTED: (
        "it does not prove that it knows the secret (pymqHaSecret): it is a slave of RocketMQ, or "
        "one of pymq without a secret",
        "set the same pymqHaSecret there or, if it is RocketMQ's and may have all messages, list "
        "its address in pymqHaNetworks here",
    ),
    Refusal.WRONG_SECRET: (
        "it does not prove the secret of this master but another one",
        "set the same pymqHaSecret at both",
    ),
    Refusal.OTHER_VERSION: (
        "it proves its secret in another way, because it is another version of pymq",
        "install the same version at both",
    ),
}


class MakeSlave(Protocol):
    """Makes the protocol of somebody who may come in."""

    def __call__(self, *, is_proven: bool) -> asyncio.Protocol:
        """Return it; ``is_proven``: it has proven that it knows the secret."""


class Door:
    """Lets slaves in.

    Args:
        security: who may come in.
        silence_s: somebody at a trusted address who has said nothing for so long is disconnected.
        count_max: how many connections there may be, with those that are in.
        inside: returns how many are in.
        make: makes the protocol of somebody who may come in.
    """

    def __init__(
        self,
        security: Security,
        *,
        silence_s: float,
        count_max: int,
        inside: Callable[[], int],
        make: MakeSlave,
    ) -> None:
        self._security = security
        self._silence_s = silence_s
        self._count_max = count_max
        self._inside = inside
        self._make = make
        self._waiting: list[Inbox] = []
        self._tasks = Tasks("HA port")
        #: What was said about whom, by address.
        self._said: dict[str, SaidOnce] = {}
        self._said_full = SaidOnce(_log)
        self._is_closed = False

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return Inbox(self._came)

    def _came(self, inbox: Inbox) -> None:
        security = self._security
        is_listed = security.lists(inbox.host)
        if self._is_closed:
            inbox.abort()
            return
        if security.secret is None and not is_listed:
            self._refuse(
                inbox,
                "its address is not one that may replicate (pymqHaNetworks)",
                "if it is a slave of this broker, add its address there, or set pymqHaSecret at "
                "both",
            )
            inbox.abort()
            return
        if security.tls is not None and not is_listed:
            inbox.hold()
        self._waiting.append(inbox)
        if len(self._waiting) + self._inside() > self._count_max:
            self._make_room()
        self._tasks.start("newcomer", self._receive(inbox, is_listed=is_listed))

    def _make_room(self) -> None:
        one = random.choice(self._waiting)  # whoever makes the noise is hit most
        self._said_full.warn(
            "full",
            "the HA port has %d connections, as many as may (pymqHaConnectionsMax), %d of them "
            "without a word of a slave; one of those, from %s, is closed for each that comes: look "
            "who connects there without being a slave",
            self._count_max,
            len(self._waiting) - 1,
            one.host,
        )
        one.abort()
        self._gone(one)

    async def _receive(self, inbox: Inbox, *, is_listed: bool) -> None:
        timeout_s = self._silence_s if is_listed else self._security.handshake_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._examine(inbox, is_listed=is_listed)
        except TimeoutError:
            self._refuse(
                inbox,
                f"it has said too little in {timeout_s:g} s "
                f"({'haHousekeepingInterval' if is_listed else 'pymqHaHandshakeTimeout'})",
                "look what runs there, if it is a slave of this broker",
            )
        except OSError as error:
            _log.debug("%s came to the HA port and left: %s", inbox.host, error)
        finally:
            inbox.abort()
            self._gone(inbox)
            if not self._waiting:
                self._said_full.over("full", "the HA port has room again")

    def _gone(self, inbox: Inbox) -> None:
        if inbox in self._waiting:
            self._waiting.remove(inbox)

    async def _examine(self, inbox: Inbox, *, is_listed: bool) -> None:
        """Let somebody in, or tell him why not.

        Raises:
            OSError: he left, or there is no agreement about TLS.
        """
        security = self._security
        if security.tls is not None and not is_listed:
            try:
                await inbox.accept_tls(security.tls(), self._silence_s + security.handshake_s)
            except OSError as error:
                if inbox not in self._waiting:
                    return  # it had to go for another one
                reason = getattr(error, "reason", None) or str(error)
                self._refuse(
                    inbox,
                    "it does not agree to TLS: "
                    + (reason or "it left meanwhile, and may not trust this certificate"),
                    "its log says why it left; set pymqHaTls=true there if it is not, with a "
                    "certificate if pymqHaTlsTrustCertPath is set here; RocketMQ's slaves cannot: "
                    "list their addresses in pymqHaNetworks here",
                )
                return
        word = await inbox.read(WORD_BYTES)
        refusal: Refusal | None = None
        if is_hello(word):
            refusal = await check_slave(inbox, security.secret, word)
            is_proven, word = True, b""
        elif word.startswith(_TLS_RECORD):
            self._refuse(
                inbox,
                "it speaks TLS, and this master does not"
                + (" with the addresses in pymqHaNetworks" if security.tls else " (pymqHaTls)"),
                "set pymqHaTls to the same at both, and list its address at neither or at both",
            )
            return
        else:
            is_proven = False
            if not is_listed:
                refusal = Refusal.PROOF_WANTED
        if refusal is None:
            self._said.pop(inbox.host, None)
            self._gone(inbox)
            inbox.hand_over(self._make(is_proven=is_proven), word)
            return
        self._refuse(inbox, *_REFUSED[refusal])
        # An empty slave of RocketMQ, which reports 0, would take it for the beginning of the log.
        if any(word) or refusal is not Refusal.PROOF_WANTED:
            await send_away(inbox, refusal)

    def _refuse(self, inbox: Inbox, cause: str, cure: str) -> None:
        """Say why somebody may not come in, once for as long as that is so."""
        said = self._said.setdefault(inbox.host, SaidOnce(_log))
        if len(self._said) > ADDRESS_COUNT_MAX:  # some have many addresses
            del self._said[next(iter(self._said))]
        said.warn(cause, "slave %s is disconnected: %s; %s", inbox.host, cause, cure)

    async def close(self) -> None:
        """Disconnect everybody who is not in; idempotent."""
        self._is_closed = True
        await self._tasks.close()
