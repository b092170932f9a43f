"""Every exception pymq raises on purpose.

::

    PymqError
    ├── ConfigurationError        a setting, option or argument is wrong
    ├── FilterSyntaxError         an SQL92 filter that does not parse, or is over a limit
    ├── ProtocolError
    │   ├── LocalProtocolError    we were asked to send something invalid
    │   └── RemoteProtocolError   the peer sent bytes that are not the protocol
    ├── StoreError
    │   ├── CorruptRecord         bytes on disk or in a buffer are malformed
    │   ├── OffsetOutOfRange
    │   ├── StoreClosed
    │   ├── StoreLocked           another process has the directory open
    │   ├── StoreMismatch         the directory was written with other settings
    │   ├── DiskFull
    │   ├── StoreBusy             too many writes wait for the disk
    │   └── FlushFailed           the disk refused a write or a flush: final for its range
    ├── ConnectionFailed
    ├── RequestTimeout            sent, unanswered: the outcome is unknown
    ├── DurabilityUnknown         stored, perhaps less durably than the broker's settings promise
    ├── TooManyPending            not sent: too many requests are unanswered
    ├── ClientClosed
    ├── ClientMisplaced           used in another process, thread or event loop than its own
    ├── AlreadySettled            a message that was consumed has an outcome already
    ├── NotInHand                 a message is not with its consumer, or not any more
    ├── CommitFailed              some offsets of a consumer group were not committed
    ├── RowsNotSent               some rows of a table were not stored, or perhaps not
    ├── RouteNotFound             no name server knows a broker for the topic
    ├── MessageNotFound           no broker has a message with that id or key
    ├── BrokersFailed             some of several brokers did not do or answer what all were asked
    └── BrokerError               the peer answered with an error code
        └── one subclass per code that callers tell apart

Callers decide by class and by the two flags, never by text.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self


class PymqError(Exception):
    """Root of the tree."""

    #: Could the same call succeed later, or elsewhere?
    retriable = False
    #: False: the request, in this attempt or in an earlier one, may have taken effect.
    outcome_known = True

    def after_unknown(self, earlier: "PymqError | None") -> Self:
        """Return the error that ends a send after attempts that may have stored the message.

        A copy, because everybody who waits for a route gets the same error object.

        Args:
            earlier: why the outcome of an earlier attempt is unknown; ``None``: none is unknown.
        """
        if earlier is None or not self.outcome_known:
            return self
        copy = self.retold(f"{self}; an earlier attempt may have stored it ({earlier})")
        copy.outcome_known = False
        copy.__cause__ = earlier
        return copy

    def retold(self, text: str) -> Self:
        """Return a copy that says something else and is otherwise the same."""
        copy = type(self).__new__(type(self), text)
        copy.__dict__.update(self.__dict__)
        copy.__cause__ = self.__cause__
        return copy


class ConfigurationError(PymqError):
    """A setting, option or argument is wrong; the text names it and says what would be right."""


class FilterSyntaxError(PymqError):
    """An SQL92 filter does not parse, compares what has no order, or is too long or too deep."""


class ProtocolError(PymqError):
    """Bytes or values that do not fit the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; it may have done what was asked."""

    outcome_known = False


class StoreError(PymqError):
    """The message store could not do what was asked."""


class CorruptRecord(StoreError):
    """A record, index entry or state file does not hold what its format demands."""


class OffsetOutOfRange(StoreError):
    """The offset is below the first or beyond the last one kept."""


class StoreClosed(StoreError):
    """The store was closed, or never opened."""


class StoreLocked(StoreError):
    """Another process has the store directory open."""


class StoreMismatch(StoreError):
    """The directory was written with settings other than those it is opened with."""


class DiskFull(StoreError):
    """No space left for the write; nothing of it was stored."""

    retriable = True


class StoreBusy(StoreError):
    """Too many writes wait for the disk already; nothing of this one was stored."""

    retriable = True


class FlushFailed(StoreError):
    """The disk refused a write or a flush. Final: the store takes no more writes."""

    outcome_known = False


class ConnectionFailed(PymqError):
    """No connection, or it broke before the answer came."""

    retriable = True

    def __init__(self, text: str, *, sent: bool = False) -> None:
        super().__init__(text)
        self.outcome_known = not sent


class RequestTimeout(PymqError):
    """No answer within the time given; the request may have taken effect."""

    retriable = True
    outcome_known = False


class DurabilityUnknown(PymqError):
    """A broker stored the message but could not secure it: FLUSH_DISK_TIMEOUT and the like."""

    retriable = True
    outcome_known = False


class TooManyPending(PymqError):
    """A connection has reached its limit of unanswered requests; nothing was sent."""

    retriable = True


class ClientClosed(PymqError):
    """The client was closed, or never started."""

    def __init__(self, text: str, *, sent: bool = False) -> None:
        super().__init__(text)
        self.outcome_known = not sent


class ClientMisplaced(PymqError):
    """The client belongs to another process, thread or event loop; nothing was sent."""


class AlreadySettled(PymqError):
    """A message has an outcome: done, once more, or dead letter; there is one for a delivery."""


class NotInHand(PymqError):
    """A message is not, or no longer, with the consumer that is to say what became of it."""


class CommitFailed(PymqError):
    """Offsets were not committed; those of other queues may have been.

    It is ``retriable`` if one of ``failed`` is, and its outcome is known if those of all are.

    Attributes:
        failed: why, by queue (``MessageQueue``); empty: the text says it.
    """

    retriable = True
    outcome_known = False

    def __init__(self, text: str, failed: "dict[Any, PymqError] | None" = None) -> None:
        super().__init__(text)
        self.failed = failed or {}
        if every := self.failed.values():
            self.retriable = any(error.retriable for error in every)
            self.outcome_known = all(error.outcome_known for error in every)


class RowsNotSent(PymqError):
    """Some rows of a table were not stored, or are not known to be.

    Attributes:
        receipts: what became of each row (``ColumnReceipts``).
        failures: why; the first of each request that failed.
    """

    def __init__(self, text: str, receipts: Any = None, failures: "list[PymqError] | None" = None):
        super().__init__(text)
        self.receipts = receipts
        self.failures = failures or []
        self.retriable = all(error.retriable for error in self.failures)
        self.outcome_known = all(error.outcome_known for error in self.failures)


class RouteNotFound(PymqError):
    """No name server knows a usable broker for the topic."""

    retriable = True
    #: True: all name servers were asked, and none of them knows the topic. Of a send: and they
    #: know brokers, none of which creates it.
    is_certain = False


class MessageNotFound(PymqError):
    """No broker has such a message; one just sent may take a moment to be found."""

    retriable = True


class BrokersFailed(PymqError):
    """Some of several brokers did not do, or did not answer, what all of them were asked.

    Attributes:
        failures: broker name, or address of a name server -> why it did not, or may not have.
        answers: likewise -> what the others answered; what was to be changed is changed there.
    """

    def __init__(
        self,
        text: str,
        *,
        failures: Mapping[str, PymqError] | None = None,
        answers: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(text)
        self.failures = dict(failures or {})
        self.answers = dict(answers or {})
        every = self.failures.values()
        self.retriable = all(one.retriable for one in every)
        self.outcome_known = all(one.outcome_known for one in every)


class BrokerError(PymqError):
    """The peer answered with an error code; ``code`` and ``remark`` are the wire's."""

    by_code: ClassVar[dict[int, type["BrokerError"]]] = {}

    def __init_subclass__(cls, *, code: int, retriable: bool = False) -> None:
        assert code not in BrokerError.by_code, f"{cls.__name__} repeats code {code}"
        BrokerError.by_code[code] = cls
        cls.retriable = retriable

    def __init__(self, text: str, *, code: int, remark: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.remark = remark
        #: What the header of the answer says besides, where this is about to become one.
        self.fields: dict[str, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made again from ``args``, which lack what is given by keyword.
        return partial(type(self), code=self.code, remark=self.remark), self.args, vars(self)

    @staticmethod
    def of(code: int, remark: str | None, *, peer: str, request: str) -> "BrokerError":
        """Return the error for a response code, an instance of its subclass where there is one.

        Args:
            code: response code, as on the wire.
            remark: the peer's explanation, if it gave one.
            peer: who answered, ``host:port``.
            request: describes what was asked.
        """
        text = f"{peer} refused {request}: code {code}, {remark or 'no remark'}"
        return BrokerError.by_code.get(code, BrokerError)(text, code=code, remark=remark)


def refusal(code: int, remark: str, fields: dict[str, str] | None = None) -> BrokerError:
    """Return the error with which a server's handler refuses a request.

    Args:
        code: response code.
        remark: what is wrong, where, and what to do, in one sentence for the peer.
        fields: what the header of the answer says besides.
    """
    error = BrokerError.by_code.get(code, BrokerError)(remark, code=code, remark=remark)
    error.fields = fields
    return error


class BrokerSystemError(BrokerError, code=1, retriable=True):
    """SYSTEM_ERROR: an unforeseen error, perhaps after something was stored."""

    outcome_known = False


class SystemBusy(BrokerError, code=2, retriable=True):
    """SYSTEM_BUSY: overload; nothing was done."""


class RequestNotSupported(BrokerError, code=3):
    """REQUEST_CODE_NOT_SUPPORTED."""


class NotReplicated(BrokerError, code=12, retriable=True):
    """FLUSH_SLAVE_TIMEOUT: the broker has it; its slaves did not say in time that they do."""

    outcome_known = False


class MessageIllegal(BrokerError, code=13):
    """MESSAGE_ILLEGAL: body, properties or topic over a limit, or a malformed batch."""


class ServiceNotAvailable(BrokerError, code=14, retriable=True):
    """SERVICE_NOT_AVAILABLE: the store takes no writes (disk full, slave, shutting down)."""


class NoPermission(BrokerError, code=16):
    """NO_PERMISSION: broker, topic or group forbids it."""


class TopicNotExist(BrokerError, code=17, retriable=True):
    """TOPIC_NOT_EXIST: no such topic, or no route to it."""

    #: True: all name servers were asked, and none of them knows the topic.
    is_certain = False


class PullOffsetMoved(BrokerError, code=21):
    """PULL_OFFSET_MOVED: the offset asked for is outside the queue."""


class QueryNotFound(BrokerError, code=22):
    """QUERY_NOT_FOUND: no such committed offset, message or value."""


class SubscriptionParseFailed(BrokerError, code=23):
    """SUBSCRIPTION_PARSE_FAILED: a bad tag or SQL expression."""


class SubscriptionNotExist(BrokerError, code=24, retriable=True):
    """SUBSCRIPTION_NOT_EXIST: the broker has no heartbeat of this group and topic yet."""


class SubscriptionNotLatest(BrokerError, code=25, retriable=True):
    """SUBSCRIPTION_NOT_LATEST: the broker's subscription is older than the pull's."""


class GroupNotExist(BrokerError, code=26):
    """SUBSCRIPTION_GROUP_NOT_EXIST: unknown group, and groups are not created automatically."""


class InvalidParameter(BrokerError, code=29):
    """INVALID_PARAMETER: illegal name, or a queue id out of range."""


class ConsumerNotOnline(BrokerError, code=206):
    """CONSUMER_NOT_ONLINE: the consumer group has no live member."""
