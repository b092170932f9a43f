"""Every request gets one answer, whatever its handler does, and is observed once."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

import pytest
from tests.unit.net.connections import FakeConnection, ask

from pymq.errors import BrokerError, DiskFull, RemoteProtocolError, refusal
from pymq.net.dispatcher import Answer, Dispatcher, Handler, PartedResponse, Request
from pymq.net.tasks import Tasks, waiting_code
from pymq.protocol.codes import CommandFlag, ResponseCode
from pymq.protocol.command import Command

CODE, ONE_WAY = 7, int(CommandFlag.ONE_WAY)


class Observed:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int | None]] = []
        #: When the measured time of each began, or a little later.
        self.began_s: list[float] = []

    def finished(self, code: int, response_code: int | None, elapsed_s: float) -> None:
        self.requests.append((code, response_code))
        self.began_s.append(perf_counter() - elapsed_s)


def ok(request: Request) -> Answer:
    return request.response(ResponseCode.SUCCESS, "fine")


async def later(request: Request) -> Command:
    await asyncio.sleep(0)
    return request.response(ResponseCode.SUCCESS, "later")


def failing(error: Exception) -> Handler:
    def handle(request: Request) -> Answer:
        raise error

    return handle


def failing_later(error: Exception) -> Handler:
    async def handle(request: Request) -> Command:
        await asyncio.sleep(0)
        raise error

    return handle


ERRORS = [
    (refusal(ResponseCode.TOPIC_NOT_EXIST, "no such topic"), 17, "no such topic"),
    (BrokerError("text", code=99, remark=None), 99, "text"),
    (RemoteProtocolError("field a is missing"), 1, "field a is missing"),
    (DiskFull("no space"), 1, "no space"),
    (ValueError("a bug"), 1, "ValueError: a bug"),
]


@pytest.mark.parametrize(("error", "code", "remark"), ERRORS)
@pytest.mark.parametrize("handler_of", [failing, failing_later])
def test_what_goes_wrong_becomes_a_response(
    handler_of: Callable[[Exception], Handler],
    error: Exception,
    code: int,
    remark: str,
    unawaited: list[str],
) -> None:
    async def check() -> None:
        observed, connection = Observed(), FakeConnection()
        dispatcher = Dispatcher("test", {CODE: handler_of(error)}, observer=observed)
        dispatcher.on_commands(connection.as_connection(), [Command(CODE, opaque=5)])
        while not connection.responses:
            await asyncio.sleep(0)
        ((_, response, _),) = connection.responses
        assert (response.code, response.remark, response.opaque) == (code, remark, 5)
        assert observed.requests == [(CODE, code)]
        await dispatcher.close()

    asyncio.run(check())
    assert any("a bug" in text for text in unawaited) is isinstance(error, ValueError)
    unawaited.clear()


def test_a_request_nobody_handles() -> None:
    observed = Observed()
    answer = ask(Dispatcher("test", {CODE: ok}, observer=observed), Command(8))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and "8" in (answer.remark or "")
    assert observed.requests == [(8, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)]


def test_responses_of_peers_are_for_whoever_asked() -> None:
    observed, connection = Observed(), FakeConnection()
    dispatcher = Dispatcher("test", {CODE: ok}, observer=observed)
    answer = Command(CODE, opaque=4).reply(0)
    dispatcher.on_commands(connection.as_connection(), [answer])
    assert connection.answers == [answer]
    assert not connection.responses and not observed.requests


def test_commands_of_one_turn_are_answered_in_order_and_one_way_ones_not_at_all() -> None:
    observed, connection = Observed(), FakeConnection()
    dispatcher = Dispatcher("test", {CODE: ok}, observer=observed)
    commands = [Command(CODE, opaque=1), Command(CODE, flag=ONE_WAY), Command(CODE, opaque=3)]
    dispatcher.on_commands(connection.as_connection(), commands)
    assert [response.opaque for _, response, _ in connection.responses] == [1, 3]
    assert observed.requests == [(CODE, 0)] * 3


def test_a_body_in_pieces_stays_in_pieces() -> None:
    connection = FakeConnection()

    def records(request: Request) -> Answer:
        head = request.response(ResponseCode.SUCCESS)
        return PartedResponse(head, [memoryview(b"ab"), memoryview(b"c")])

    dispatcher = Dispatcher("test", {CODE: records})
    dispatcher.on_commands(connection.as_connection(), [Command(CODE)])
    assert connection.responses[0][2] == [b"ab", b"c"]


def test_a_request_that_is_held_counts_from_when_its_waiting_ends() -> None:
    async def check() -> None:
        held: list[Request] = []
        observed, connection = Observed(), FakeConnection()
        dispatcher = Dispatcher(
            "test", {CODE: lambda request: held.append(request)}, observer=observed
        )
        commands = [Command(CODE, opaque=number) for number in range(4)]
        dispatcher.on_commands(connection.as_connection(), commands)
        await asyncio.sleep(0.2)
        assert not connection.responses and not observed.requests
        resumed_s = perf_counter()
        held[0].resume(lambda: ok(held[0]))
        held[1].resume(lambda: failing(DiskFull("x"))(held[1]))
        held[2].resume(lambda: later(held[2]))
        held[3].abandon()
        while len(connection.responses) < 3:
            await asyncio.sleep(0)
        assert [response.code for _, response, _ in connection.responses] == [0, 1, 0]
        assert observed.requests == [(CODE, 0), (CODE, 1), (CODE, None), (CODE, 0)]
        assert min(*observed.began_s[:2], observed.began_s[3]) >= resumed_s
        await dispatcher.close()

    asyncio.run(check())


def test_a_frame_that_is_encoded_already() -> None:
    observed, connection = Observed(), FakeConnection()

    def encoded(request: Request) -> Answer:
        request.respond_encoded(0, b"frame")
        return None

    dispatcher = Dispatcher("test", {CODE: encoded}, observer=observed)
    commands = [Command(CODE), Command(CODE, flag=ONE_WAY)]
    dispatcher.on_commands(connection.as_connection(), commands)
    assert connection.frames == [b"frame"] and observed.requests == [(CODE, 0)] * 2


def test_a_guard_says_no_before_the_handler_sees_anything() -> None:
    seen: list[Request] = []

    def guard(request: Request) -> None:
        if request.command.language:
            raise refusal(ResponseCode.NO_PERMISSION, "not you")

    def handle(request: Request) -> Answer:
        seen.append(request)
        return ok(request)

    dispatcher = Dispatcher("test", {CODE: handle}, guard=guard)
    assert ask(dispatcher, Command(CODE, language=3)).code == ResponseCode.NO_PERMISSION
    assert not seen
    assert ask(dispatcher, Command(CODE, language=0)).code == ResponseCode.SUCCESS


def test_a_code_has_one_handler() -> None:
    with pytest.raises(AssertionError, match="have two handlers"):
        Dispatcher("test", {CODE: ok}, {CODE: later, 8: ok})


def test_only_so_many_handlers_may_wait() -> None:
    async def check() -> None:
        connection, gate = FakeConnection(), asyncio.Event()

        async def wait(request: Request) -> Command:
            await gate.wait()
            return request.response(ResponseCode.SUCCESS)

        dispatcher = Dispatcher("test", {CODE: wait, 8: ok}, waiting_count_max=2)
        commands = [Command(CODE, opaque=number) for number in range(3)]
        dispatcher.on_commands(connection.as_connection(), [*commands, Command(8, opaque=3)])
        (_, busy, _), (_, quick, _) = connection.responses
        assert (busy.opaque, busy.code) == (2, ResponseCode.SYSTEM_BUSY)
        assert busy.remark == "2 requests wait here, as many as may; ask again later"
        assert quick.code == 0
        gate.set()
        while len(connection.responses) < 4:
            await asyncio.sleep(0)
        dispatcher.on_commands(connection.as_connection(), commands[:1])
        while len(connection.responses) < 5:
            await asyncio.sleep(0)
        assert {response.code for _, response, _ in connection.responses[2:]} == {0}
        await dispatcher.close()

    asyncio.run(check())


def test_what_a_handler_starts_does_not_wait_for_its_request() -> None:
    """Or it would be given up when its request would be."""
    tasks = Tasks("test")
    codes: list[int | None] = []

    async def note() -> None:
        codes.append(waiting_code.get())

    async def handle(request: Request) -> Command:
        await asyncio.sleep(0)
        await tasks.start("work", note())
        await asyncio.gather(note())  # a part of the handler
        return request.response(ResponseCode.SUCCESS, "done")

    async def main() -> None:
        dispatcher, connection = Dispatcher("test", {CODE: handle}), FakeConnection()
        dispatcher.on_commands(connection.as_connection(), [Command(CODE)])
        while not connection.responses:
            await asyncio.sleep(0)
        await dispatcher.close()
        await tasks.close()

    asyncio.run(main())
    assert codes == [None, CODE]


@pytest.mark.parametrize("handler", [ok, later])
def test_a_closed_dispatcher_refuses(handler: Callable[[Request], Awaitable[Command]]) -> None:
    async def check() -> None:
        dispatcher = Dispatcher("test", {CODE: handler})
        await dispatcher.close()
        await dispatcher.close()
        answer = ask(dispatcher, Command(CODE))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

    asyncio.run(check())


def test_a_refusal_that_would_be_misread_is_not_sent() -> None:
    """Whatever refuses: a handler at once or later, too many that wait, the end."""

    async def check() -> None:
        observed, connection = Observed(), FakeConnection()
        error, known = refusal(ResponseCode.SYSTEM_BUSY, "busy"), refusal(22, "no such offset")
        standing = asyncio.Event()

        async def stand(request: Request) -> Command:
            await standing.wait()
            return request.response(ResponseCode.SUCCESS)

        dispatcher = Dispatcher(
            "test",
            {1: failing(error), 2: failing_later(error), 3: stand, 4: failing(known), 5: ok},
            observer=observed,
            waiting_count_max=2,
            is_misread=lambda command, code: command.language == 0 and code != 22,
        )
        for language in 0, 3:
            commands = [Command(code, language=language) for code in (1, 2, 3, 3, 4, 5)]
            dispatcher.on_commands(connection.as_connection(), commands)
            for _ in range(3):
                await asyncio.sleep(0)
        await dispatcher.close()
        for language in 0, 3:
            command = Command(5, language=language)
            dispatcher.on_commands(connection.as_connection(), [command])
        answered = [(command.language, one.code) for command, one, _ in connection.responses]
        assert [code for language, code in answered if language == 0] == [22, 0]
        assert sorted(code for language, code in answered if language) == [0, 2, 2, 2, 2, 14, 22]
        assert len(observed.requests) == 14
        assert sum(code is None for _, code in observed.requests) == 5

    asyncio.run(check())
