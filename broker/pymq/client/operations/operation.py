"""What an operation is: a request, and how its response becomes a value or an error."""

from collections.abc import Callable
from typing import Generic, TypeVar

from pymq.errors import BrokerError, RemoteProtocolError
from pymq.protocol.codes import RequestCode, ResponseCode, SinkRequest
from pymq.protocol.command import Command
from pymq.protocol.headers.codec import Header

T = TypeVar("T")

#: Codes that most operations take for an answer.
SUCCESS = (int(ResponseCode.SUCCESS),)


class Operation(Generic[T]):
    """A request, and how its response is read.

    Attributes:
        request: what to send.
    """

    __slots__ = ("request",)

    def __init__(self, request: Command) -> None:
        self.request = request

    @property
    def description(self) -> str:
        """Describes the request in error messages."""
        raise NotImplementedError

    def result(self, response: Command, *, peer: str) -> T:
        """Return the value in the response.

        Args:
            response: what ``peer`` answered.
            peer: ``host:port``, for error messages.

        Raises:
            BrokerError: the peer refused.
            RemoteProtocolError: the answer lacks what it must have.
        """
        raise NotImplementedError

    def refusal(self, response: Command, peer: str) -> BrokerError:
        """Return the error that a response's code means."""
        return BrokerError.of(response.code, response.remark, peer=peer, request=self.description)


class Plain(Operation[T]):
    """An operation whose reader is a function."""

    __slots__ = ("_accepted", "_description", "_read")

    def __init__(
        self,
        request: Command,
        description: str,
        read: Callable[[Command], T],
        accepted: tuple[int, ...] = SUCCESS,
    ) -> None:
        super().__init__(request)
        self._description = description
        self._read = read
        self._accepted = accepted

    @property
    def description(self) -> str:
        return self._description

    def result(self, response: Command, *, peer: str) -> T:
        if response.code not in self._accepted:
            raise self.refusal(response, peer)
        try:
            return self._read(response)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{peer} answered {self._description}: {error}") from error


def new_request(
    code: RequestCode | SinkRequest, header: Header | None = None, body: bytes = b""
) -> Command:
    """Return a request; its channel gives it a number."""
    return Command(int(code), header.to_fields() if header is not None else None, body)


def nothing(response: Command) -> None:
    """The reader of responses without a value."""
    return None
