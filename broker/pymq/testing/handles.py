"""What may happen to the servers of an embedded cluster: they end, are slow, lose connections."""

import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, Self, TypeVar

from pymq.errors import ClientClosed, ConfigurationError, StoreError
from pymq.net.server import Server
from pymq.testing.latency import Latency
from pymq.testing.members import (
    Member,
    abandon_members,
    stop_members,
)
from pymq.testing.naming import NamesrvMember

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class RunOnLoop(Protocol):
    """Runs work on the event loop of a cluster, from any other thread."""

    def __call__(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what the work returns.

        Raises:
            ClientClosed: the cluster is not started.
            ClientMisplaced: it was, in the parent of this process.
        """


class LastingFault:
    """Something that is wrong, until ``end`` or the end of a ``with`` block."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def end(self) -> None:
        """Have it right again; idempotent."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class BrokerHandle:
    """One broker of a cluster, or several together.

    What is wrong with a broker stays so when it is restarted, until it is ended.
    """

    def __init__(
        self,
        members: Sequence[Member],
        run: RunOnLoop,
        open_members: Callable[[Sequence[Member]], Coroutine[Any, Any, None]],
    ) -> None:
        self._members = members
        self._run = run
        self._open = open_members

    @property
    def address(self) -> str:
        """``host:port``.

        Raises:
            ConfigurationError: these are several brokers.
            ClientClosed: it is stopped.
        """
        member, *others = self._members
        if others:
            names = ", ".join(f"{one.name}/{one.broker_id}" for one in self._members)
            raise ConfigurationError(f"which broker? {names}")
        if member.broker is None:
            raise ClientClosed(f"broker {member.broker_id} of {member.name} is stopped")
        return member.broker.address

    @property
    def is_running(self) -> bool:
        """Whether all of them run."""
        return all(member.broker is not None for member in self._members)

    def stop(self) -> None:
        """Stop cleanly; the name server forgets it at once. Idempotent.

        Raises:
            StoreError: the last flush failed, as on a full disk; it is stopped nevertheless.
        """
        self._run(stop_members(self._members))

    def kill(self) -> None:
        """Stop as if the process was killed, as far as others can see. Idempotent.

        Connections end, requests stay unanswered, and it takes leave of nobody. The store is
        closed cleanly nevertheless, as far as its disk allows: only the end of a process leaves it
        as a crash does.
        """
        try:
            self._run(abandon_members(self._members))
        except StoreError as error:
            _log.debug("a killed broker leaves something unsaved: %s", error)

    def start(self) -> None:
        """Start again on the same store and port; does nothing while it runs.

        Raises:
            RequestTimeout: it was not ready after ``members.START_S``: no broker of the group runs
                that surely has everything, so none may be the master. Start them together.
            PymqError: it cannot be started.
        """
        self._run(self._open(self._members))

    def restart(self) -> None:
        """Stop cleanly, if it runs, and start again.

        Raises:
            PymqError: as ``start``.
        """
        self.stop()
        self.start()

    def delay(self, seconds: float) -> LastingFault:
        """Have each request wait before it is handled.

        Of several delays that last the one that began last counts.

        Args:
            seconds: how long; 0: not at all.

        Raises:
            ConfigurationError: that is no time.
        """
        return _delay(self._run, [member.latency for member in self._members], seconds)

    def drop_connections(self) -> int:
        """End the connections of all clients at once; they may connect again. Return how many."""
        running = [one.broker for one in self._members if one.broker is not None]
        return self._run(_drop([server for one in running for server in one.listeners]))

    def disk_full(self) -> LastingFault:
        """Have nothing written to the disk any more: messages are refused, as on a full disk.

        A disk that is full for several reasons is so until all of them are ended.
        """
        cause, members = object(), self._members

        async def fill() -> None:
            for member in members:
                await member.fill(cause)

        async def unfill() -> None:
            for member in members:
                await member.unfill(cause)

        self._run(fill())
        return LastingFault(lambda: self._run(unfill()))


class NamesrvHandle:
    """The name server of a cluster."""

    def __init__(self, member: NamesrvMember, run: RunOnLoop) -> None:
        self._member = member
        self._run = run

    @property
    def address(self) -> str:
        """``host:port``, also while it is stopped."""
        return self._member.address

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._member.server is not None

    def stop(self) -> None:
        """Stop it; idempotent."""
        self._run(self._member.stop())

    def kill(self) -> None:
        """Stop it: for others there is no difference, because it never takes leave."""
        self.stop()

    def start(self) -> None:
        """Start it again on its port; it knows routes once the brokers have registered again.

        Raises:
            PymqError: it cannot be started.
        """
        self._run(self._member.start())

    def restart(self) -> None:
        """Stop it, if it runs, and start it again.

        Raises:
            PymqError: as ``start``.
        """
        self.stop()
        self.start()

    def delay(self, seconds: float) -> LastingFault:
        """Have each request wait before it is handled; see ``BrokerHandle.delay``.

        Raises:
            ConfigurationError: that is no time.
        """
        return _delay(self._run, [self._member.latency], seconds)

    def drop_connections(self) -> int:
        """End all connections at once, those of brokers, too; return how many."""
        server = self._member.server
        return self._run(_drop([] if server is None else [server.listener]))


def _delay(run: RunOnLoop, latencies: Sequence[Latency], seconds: float) -> LastingFault:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigurationError(f"delay({seconds!r}): expected seconds from 0 on")

    cause = object()

    async def begin() -> None:
        for latency in latencies:
            latency.begin(cause, seconds)

    async def end() -> None:
        for latency in latencies:
            latency.end(cause)

    run(begin())
    return LastingFault(lambda: run(end()))


async def _drop(servers: Sequence[Server]) -> int:
    return sum(server.abort_connections() for server in servers)
