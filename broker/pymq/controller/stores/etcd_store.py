"""Groups and leadership in etcd, for any number of controllers.

::

    /pymq/controller/GROUP/leader            {"id":...,"address":...,"term":...}   with a lease
    /pymq/controller/GROUP/controllers/ID    host:port of a controller that runs   with its lease
    /pymq/controller/GROUP/groups/NAME       a group, as JSON

Whoever creates ``leader`` leads until the lease of the key ends: he renews it, and a few seconds
after his death etcd removes it. Each term has a name that no other ever had. Every read of a group
and every change of one is a transaction that etcd carries out only while ``leader`` still is that
term; a change needs the group to be what was read, too (its modification revision). So it does not
matter how late a controller finds out that it does not lead: it reads and changes nothing.

What was read before etcd was restored from an old copy cannot be mixed with what is there then: the
term is not.
"""

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymq.controller.groups import GroupState
from pymq.controller.stores.etcd_gateway import EtcdGateway, EtcdTls, decode, encode
from pymq.controller.stores.interface import Leader, Stored, not_leader
from pymq.errors import PymqError, RemoteProtocolError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks

_log = logging.getLogger(__name__)

#: How often it is looked who leads.
LOOK_INTERVAL_S = 0.3
#: Calls about groups that can be under way at once.
CALL_COUNT = 4


@dataclass(frozen=True, slots=True)
class _Key:
    value: bytes
    revision: int


class EtcdStore:
    """A ``ControllerStore`` in etcd.

    Args:
        urls: of etcd's members.
        tls: for https.
        group: name of the controllers that belong together.
        self_id: name of this controller; no two have the same.
        address: ``host:port`` of this controller for brokers.
        lease_s: another one leads this long after this one died, at most.

    Raises:
        ConfigurationError: a URL is none, or the library is missing.
    """

    def __init__(
        self,
        urls: Sequence[str],
        tls: EtcdTls,
        *,
        group: str,
        self_id: str,
        address: str,
        lease_s: int,
    ) -> None:
        self._urls = urls
        self._self = Leader(self_id, address)
        prefix = f"/pymq/controller/{group}"
        self._leader_key = f"{prefix}/leader"
        self._controllers = f"{prefix}/controllers/"
        self._groups = f"{prefix}/groups/"
        self._lease_s = lease_s
        #: Apart, so that no crowd of requests keeps the lease from being renewed.
        self._calls = EtcdGateway(urls, tls, thread_count=CALL_COUNT)
        self._renewals = EtcdGateway(urls, tls, thread_count=1)
        self._lease: str | None = None
        self._lease_until_s = self._renew_at_s = 0.0
        #: What ``leader`` holds while this process leads.
        self._term: bytes | None = None
        #: What it will hold if this process is the next. It stays until another one leads: an
        #: answer may get lost, and then etcd knows more than we do.
        self._next_term = self._new_term()
        self._leader: Leader | None = None
        self._peers: dict[str, str] = {}
        self._revision = 0
        self._said = SaidOnce(_log)
        self._tasks = Tasks("controller: etcd")

    @property
    def leader(self) -> Leader | None:
        """Who led a moment ago."""
        if self._leader == self._self:
            return self._self if self.is_leader else None
        return self._leader

    @property
    def is_leader(self) -> bool:
        """Does it lead, if etcd kept its promise of the lease?"""
        return self._term is not None and time.monotonic() < self._lease_until_s

    @property
    def peers(self) -> Mapping[str, str]:
        """The controllers that ran a moment ago."""
        return self._peers or {self._self.id: self._self.address}

    @property
    def durability(self) -> str:
        """What it takes to lose it."""
        return (
            f"the state is in etcd at {', '.join(self._urls)}: it survives what etcd's majority "
            "survives"
        )

    async def start(self) -> None:
        """Begin to take part; etcd need not be there yet."""
        await self.look()
        self._tasks.repeat("leadership", self.look, LOOK_INTERVAL_S)

    async def close(self) -> None:
        """Stop leading, so that another one can at once, and stop; idempotent."""
        await self._tasks.close()
        lease, self._lease, self._term = self._lease, None, None
        if lease is not None:
            try:
                await self._renewals.call("lease/revoke", {"ID": lease})
            except PymqError as error:
                _log.debug("the lease ends by itself: %s", error)
        await self._calls.close()
        await self._renewals.close()

    # --- leadership

    async def look(self) -> None:
        """Renew the lease, become leader if nobody is, and see who is."""
        try:
            await self._renew()
            await self._campaign()
        except PymqError as error:
            if time.monotonic() >= self._lease_until_s:
                self._lose("its lease ended")
                self._leader = None
            self._said.warn("etcd", "nobody becomes master while this lasts: %s", error)
        else:
            self._said.over("etcd", "etcd can be used again")

    async def _renew(self) -> None:
        begun_s = time.monotonic()
        if self._lease is not None and begun_s < self._renew_at_s:
            return
        if self._lease is not None:
            answer = await self._renewals.call("lease/keepalive", {"ID": self._lease})
            if int(answer.get("result", {}).get("TTL", 0)) <= 0:
                self._lease = None
                self._lose("etcd does not know its lease any more")
        if self._lease is None:
            begun_s = time.monotonic()
            answer = await self._renewals.call("lease/grant", {"TTL": self._lease_s})
            self._lease = str(answer["ID"])
        # Counted from before etcd was asked: never longer than etcd does.
        self._lease_until_s = begun_s + self._lease_s
        self._renew_at_s = begun_s + self._lease_s / 3

    def _new_term(self) -> bytes:
        mine = {"id": self._self.id, "address": self._self.address, "term": uuid.uuid4().hex}
        return json.dumps(mine).encode()

    async def _campaign(self) -> None:
        value = self._next_term
        look = [_range(self._leader_key), _range_below(self._controllers)]
        present = _put(self._controllers + self._self.id, self._self.address, self._lease)
        answer = await self._transaction(
            [{"key": encode(self._leader_key), "target": "VERSION", "version": 0}],
            [_put(self._leader_key, value, self._lease), present, *look],
            look,
            line=self._renewals,
        )
        leader, controllers = (_keys(one) for one in answer[-2:])
        held = leader.get(self._leader_key)
        if held is None or held.value != value:
            self._lose("another one leads")
            self._next_term = self._new_term()
        elif self._term is None:
            self._term = value
            _log.warning("this controller, %s at %s, leads", self._self.id, self._self.address)
        self._leader = None if held is None else _leader(held.value)
        self._peers = {
            key.removeprefix(self._controllers): found.value.decode(errors="replace")
            for key, found in controllers.items()
        }
        if self._self.id not in self._peers:
            await self._transaction([], [present], [], line=self._renewals)

    def _lose(self, why: str) -> None:
        if self._term is not None:
            self._term = None
            _log.warning("this controller, %s, leads no more: %s", self._self.id, why)

    # --- groups

    async def read(self, name: str) -> Stored:
        """Return one group."""
        key = self._groups + name
        found = (await self._read(_range(key))).get(key)
        return Stored(None, 0) if found is None else _stored(key, found)

    async def read_all(self) -> Mapping[str, Stored]:
        """Return every group by its name."""
        return {
            key.removeprefix(self._groups): _stored(key, found)
            for key, found in (await self._read(_range_below(self._groups))).items()
        }

    async def _read(self, wanted: dict[str, Any]) -> dict[str, _Key]:
        is_term, term = self._is_term()
        answer = await self._transaction([is_term], [wanted], [], line=self._calls)
        if not answer:
            raise self._other_leads(term)
        return _keys(answer[0])

    async def replace(self, name: str, revision: int, state: GroupState | None) -> bool:
        """Replace a group, if it still is what was read; return whether it was."""
        key = self._groups + name
        is_term, term = self._is_term()
        is_same = {"key": encode(key), "target": "MOD", "mod_revision": str(revision)}
        change = (
            {"request_delete_range": {"key": encode(key)}}
            if state is None
            else _put(key, state.encode(), None)
        )
        answer = await self._transaction(
            [is_term, is_same], [change], [_range(self._leader_key)], line=self._calls
        )
        if "response_range" not in answer[0]:
            return True
        held = _keys(answer[0]).get(self._leader_key)
        if held is None or held.value != term:
            raise self._other_leads(term)
        return False

    def _is_term(self) -> tuple[dict[str, Any], bytes]:
        term = self._term
        if term is None or not self.is_leader:
            raise not_leader(self.leader)
        return {"key": encode(self._leader_key), "target": "VALUE", "value": encode(term)}, term

    def _other_leads(self, term: bytes) -> PymqError:
        if self._term == term:
            self._lose("another one leads")
            self._leader = None
        return not_leader(self.leader)

    # --- etcd

    async def _transaction(
        self,
        compare: list[dict[str, Any]],
        success: list[dict[str, Any]],
        failure: list[dict[str, Any]],
        *,
        line: EtcdGateway,
    ) -> list[dict[str, Any]]:
        """Return the answers of what was done, those of ``success`` or of ``failure``."""
        known = self._revision
        answer = await line.call(
            "kv/txn",
            {
                "compare": [{**one, "result": "EQUAL"} for one in compare],
                "success": success,
                "failure": failure,
            },
        )
        revision = int(answer.get("header", {}).get("revision", 0))
        if revision < known:  # it never goes back by itself; nothing here depends on it
            _log.error(
                "etcd is at revision %d and was at %d: it was restored from an old copy. Groups "
                "whose brokers are ahead of it get no master before you designate one with "
                "mqadmin electMaster",
                revision,
                known,
            )
            self._revision = revision
        self._revision = max(self._revision, revision)
        return list(answer.get("responses", ()))


def _put(key: str, value: str | bytes, lease: str | None) -> dict[str, Any]:
    put = {"key": encode(key), "value": encode(value)}
    return {"request_put": put if lease is None else {**put, "lease": lease}}


def _range(key: str) -> dict[str, Any]:
    return {"request_range": {"key": encode(key)}}


def _range_below(prefix: str) -> dict[str, Any]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {"request_range": {"key": encode(prefix), "range_end": encode(end)}}


def _keys(answer: dict[str, Any]) -> dict[str, _Key]:
    return {
        decode(one["key"]).decode(errors="replace"): _Key(
            decode(one.get("value", "")), int(one["mod_revision"])
        )
        for one in answer["response_range"].get("kvs", ())
    }


def _leader(value: bytes) -> Leader | None:
    try:
        found = json.loads(value)
        return Leader(str(found["id"]), str(found["address"]))
    except (ValueError, KeyError, TypeError):
        return None


def _stored(key: str, found: _Key) -> Stored:
    try:
        return Stored(GroupState.decode(found.value), found.revision)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"etcd key {key} cannot be read: {error}") from error
