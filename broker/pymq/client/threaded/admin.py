"""The blocking face of Admin, for scripts and threads."""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

from pymq.client.administration import admin as _admin
from pymq.client.administration import (
    brokers,
    groups,
    messages,
    offsets,
    replicas,
    sinks,
    topics,
)
from pymq.client.threaded.blocking_face import blocking, constructor
from pymq.client.threaded.threaded_client import Threaded

C = TypeVar("C")
T = TypeVar("T")


class _Part(Generic[C]):
    """A part of the asyncio Admin, and the face whose loop runs its coroutines."""

    def __init__(self, face: "Admin", part: Callable[[_admin.Admin], C]) -> None:
        self._face = face
        self._part = part

    @property
    def _client(self) -> C:
        return self._part(self._face._client)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._face._call(work)


class Topics(_Part[topics.Topics]):
    """See the asyncio Topics."""

    names = blocking(topics.Topics.names)
    route = blocking(topics.Topics.route)
    config = blocking(topics.Topics.config)
    create = blocking(topics.Topics.create)
    update = blocking(topics.Topics.update)
    delete = blocking(topics.Topics.delete)
    status = blocking(topics.Topics.status)
    groups = blocking(topics.Topics.groups)


class Groups(_Part[groups.Groups]):
    """See the asyncio Groups."""

    names = blocking(groups.Groups.names)
    config = blocking(groups.Groups.config)
    create = blocking(groups.Groups.create)
    delete = blocking(groups.Groups.delete)
    members = blocking(groups.Groups.members)
    running_info = blocking(groups.Groups.running_info)


class Offsets(_Part[offsets.Offsets]):
    """See the asyncio Offsets."""

    lag = blocking(offsets.Offsets.lag)
    reset = blocking(offsets.Offsets.reset)


class Messages(_Part[messages.Messages]):
    """See the asyncio Messages."""

    by_id = blocking(messages.Messages.by_id)
    by_unique_id = blocking(messages.Messages.by_unique_id)
    by_key = blocking(messages.Messages.by_key)
    by_offset = blocking(messages.Messages.by_offset)
    by_time = blocking(messages.Messages.by_time)


class Brokers(_Part[brokers.Brokers]):
    """See the asyncio Brokers."""

    addresses = blocking(brokers.Brokers.addresses)
    masters = blocking(brokers.Brokers.masters)
    wait_registered = blocking(brokers.Brokers.wait_registered)
    address = blocking(brokers.Brokers.address)
    state = blocking(brokers.Brokers.state)
    config = blocking(brokers.Brokers.config)
    delete_expired_log = blocking(brokers.Brokers.delete_expired_log)
    clean_expired_queues = blocking(brokers.Brokers.clean_expired_queues)


class Replicas(_Part[replicas.Replicas]):
    """See the asyncio Replicas."""

    reports = blocking(replicas.Replicas.reports)
    is_master = blocking(replicas.Replicas.is_master)
    leader = blocking(replicas.Replicas.leader)
    groups = blocking(replicas.Replicas.groups)
    designate = blocking(replicas.Replicas.designate)


class Sinks(_Part[sinks.Sinks]):
    """See the asyncio Sinks."""

    rows = blocking(sinks.Sinks.rows)
    forget = blocking(sinks.Sinks.forget)


class Admin(Threaded[_admin.Admin]):
    """``pymq.client.administration.admin.Admin``, blocking; takes the same arguments.

    ::

        with Admin("127.0.0.1:9876") as admin:
            admin.topics.create("flights", queue_count=16)
    """

    @constructor(_admin.Admin)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: _admin.Admin(*args, **kwargs))
        self.topics = Topics(self, lambda admin: admin.topics)
        self.groups = Groups(self, lambda admin: admin.groups)
        self.offsets = Offsets(self, lambda admin: admin.offsets)
        self.messages = Messages(self, lambda admin: admin.messages)
        self.brokers = Brokers(self, lambda admin: admin.brokers)
        self.replicas = Replicas(self, lambda admin: admin.replicas)
        self.sinks = Sinks(self, lambda admin: admin.sinks)

    def start(self) -> Self:
        """See the asyncio Admin."""
        self._start(self._client.start, "pymq admin")
        return self

    def close(self) -> None:
        """See the asyncio Admin."""
        self._stop(lambda client: client.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    cluster = blocking(_admin.Admin.cluster)
