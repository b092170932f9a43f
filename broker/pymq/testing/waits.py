"""Waiting for what an embedded cluster does by itself; for any thread but its own."""

import threading
import time
from collections.abc import Sequence

from pymq.client.cluster.routes import MASTER_ID
from pymq.client.threaded.admin import Admin
from pymq.errors import RequestTimeout
from pymq.testing.members import Member

#: What is waited for has come after this, or something is wrong.
WAIT_S = 30.0
_POLL_S = 0.02


def wait_master(name_server: str, members: Sequence[Member]) -> int:
    """Return the id of a group's master, once the name server knows one that runs.

    Args:
        name_server: its address.
        members: the brokers of the group.

    Raises:
        RequestTimeout: there was none for ``WAIT_S``.
    """
    name, deadline_s = members[0].name, time.monotonic() + WAIT_S
    with Admin(name_server) as admin:
        while True:
            found = admin.cluster().brokers.get(name)
            address = None if found is None else found.addresses.get(MASTER_ID)
            for member in members:
                broker = member.broker
                if broker is not None and broker.address == address:
                    return member.broker_id
            _pause(deadline_s, f"group {name} has no master")


def wait_in_sync(name_server: str, controller: str, members: Sequence[Member]) -> None:
    """Wait until all brokers that run are in the sync state sets of their groups.

    Args:
        name_server, controller: their addresses.
        members: the brokers.

    Raises:
        RequestTimeout: that was not so for ``WAIT_S``.
    """
    deadline_s, names = time.monotonic() + WAIT_S, {member.name for member in members}
    with Admin(name_server, timeout_s=WAIT_S) as admin:
        while True:
            in_sync = {
                (name, one.broker_id)
                for name, group in admin.replicas.groups(controller, names).items()
                for one in group.in_sync
            }
            running = {(one.name, one.broker_id) for one in members if one.broker is not None}
            if running <= in_sync:
                return
            _pause(deadline_s, f"not in sync are {sorted(running - in_sync)}")


def _pause(deadline_s: float, lacking: str) -> None:
    """Wait a moment.

    Raises:
        RequestTimeout: it is too late.
    """
    if time.monotonic() > deadline_s:
        raise RequestTimeout(f"after {WAIT_S:g} s, {lacking}: see the warnings that were logged")
    threading.Event().wait(_POLL_S)
