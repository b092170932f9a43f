"""Clients and groups at a broker: heartbeats, the members of a group, locks on queues."""

from collections.abc import Iterable

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.bodies import ConsumerIds, Heartbeat, LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.clients import UnregisterClientRequest
from pymq.protocol.headers.groups import ConsumerGroupRequest


def heartbeat(body: Heartbeat) -> Operation[int]:
    """Tell a broker which groups this client has; returns the broker's MQ version (34)."""
    request = new_request(RequestCode.HEART_BEAT, body=body.encode())
    return Plain(request, f"a heartbeat of {body.client_id}", lambda response: response.version)


def unregister(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Operation[None]:
    """Tell a broker that this client leaves one group (35)."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    request = new_request(RequestCode.UNREGISTER_CLIENT, header)
    return Plain(request, f"to unregister {client_id}", nothing)


class _ConsumerIdList(Operation[list[str]]):
    """GET_CONSUMER_LIST_BY_GROUP: "none" comes as an error, too."""

    __slots__ = ("_group",)

    def __init__(self, group: str) -> None:
        header = ConsumerGroupRequest(consumer_group=group)
        super().__init__(new_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
        self._group = group

    @property
    def description(self) -> str:
        return f"the members of group {self._group!r}"

    def result(self, response: Command, *, peer: str) -> list[str]:
        if response.code == ResponseCode.SUCCESS:
            return ConsumerIds.decode(response.body).client_ids if response.body else []
        # Code 1 also means that the broker failed; only this remark means "none".
        remark = response.remark or ""
        if response.code == ResponseCode.SYSTEM_ERROR and remark.startswith("no consumer for"):
            return []
        raise self.refusal(response, peer)


def consumer_ids(group: str) -> Operation[list[str]]:
    """The client ids of a group's live members (38); empty when the broker knows none."""
    return _ConsumerIdList(group)


def lock_queues(
    group: str, client_id: str, queues: Iterable[MessageQueue]
) -> Operation[list[MessageQueue]]:
    """Lock queues for one member of a group; returns those that are its own now (41)."""
    body = LockRequest(consumer_group=group, client_id=client_id, queues=list(queues))
    return Plain(
        new_request(RequestCode.LOCK_BATCH_MQ, body=body.encode()),
        f"{len(body.queues)} queue locks for {client_id} of group {group!r}",
        lambda response: LockResponse.decode(response.body).queues,
    )


def unlock_queues(group: str, client_id: str, queues: Iterable[MessageQueue]) -> Operation[None]:
    """Release queue locks (42)."""
    body = LockRequest(consumer_group=group, client_id=client_id, queues=list(queues))
    request = new_request(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
    return Plain(request, f"to unlock {len(body.queues)} queues of group {group!r}", nothing)
