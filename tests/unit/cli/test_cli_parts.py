"""Logging, exit status, what is printed, where reading begins: without a process or a socket."""

import json
import logging
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pymq import errors
from pymq.cli import logs, output, reading, replaying, sending
from pymq.cli.exits import EXIT_TEXTS, Exit, exit_for
from pymq.client.operations import SendResult, SendStatus
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import pack_host

HOST = pack_host("127.0.0.1", 10911)


def message(body: bytes = b"hello", tags: str | None = None) -> ReceivedMessage:
    properties = {"KEYS": "k1 k2", "UNIQ_KEY": "id-1"} | ({"TAGS": tags} if tags else {})
    return ReceivedMessage("t", body, properties, "broker-a", 3, 17, 1000, 5, 7, HOST, HOST)


# ---------------------------------------------------------------------------------- status, logs


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("x"), 2),
        (errors.LocalProtocolError("x"), 2),
        (errors.ConnectionFailed("x"), 3),
        (errors.RequestTimeout("x"), 3),
        (errors.RouteNotFound("x"), 1),
        (errors.MessageNotFound("x"), 1),
        (errors.BrokerError.of(17, "no", peer="p", request="a"), 1),
        (errors.PymqError("x"), 1),
    ],
)
def test_exit_status(error: errors.PymqError, status: int) -> None:
    assert exit_for(error) == status


def test_every_status_is_explained() -> None:
    assert set(EXIT_TEXTS) == set(Exit)


@pytest.mark.parametrize(
    ("verbose", "quiet", "level"),
    [(0, 0, "WARNING"), (1, 0, "INFO"), (2, 0, "DEBUG"), (9, 0, "DEBUG"), (0, 1, "ERROR")]
    + [(0, 9, "ERROR"), (1, 1, "WARNING")],
)
def test_levels(verbose: int, quiet: int, level: str) -> None:
    found = logs.level_for(logging.WARNING, verbose=verbose, quiet=quiet)
    assert logging.getLevelName(found) == level


def test_a_logged_traceback_stays_on_one_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = logging.LogRecord("pymq.x", 40, "f", 1, "oh\nno", None, sys.exc_info())
    text = logs.OneLine().format(record)
    assert "\n" not in text
    assert "oh | no" in text and "ValueError: first | second" in text


def logged(text: str) -> str:
    line = logs.OneLine().format(logging.LogRecord("pymq.x", 40, "f", 1, "%s", (text,), None))
    return line.partition("pymq.x: ")[2]


def test_a_logged_line_cannot_reach_the_terminal() -> None:
    assert logged("a\x1b[2Jb\x00\x7f\x9b31m\tc") == "a\\x1b[2Jb\\x00\\x7f\\x9b31m\\x09c"
    assert logged("名 €\u2028next") == "名 € | next"


@pytest.mark.parametrize("character", ["x", "\x7f", "\n"])
def test_a_logged_line_has_a_limit(character: str) -> None:
    line = logged("begin " + character * 1_000_000 + " end")
    assert len(line) < 10_000
    assert line.startswith("begin ") and line.endswith(" end")
    assert " characters ..." in line
    assert logged("x" * 8000) == "x" * 8000


# -------------------------------------------------------------------------------------- printing


def test_a_message_is_one_line_and_cannot_reach_the_terminal() -> None:
    text = output.message_text(message(b"a\nb\x1b[2J\xff\xe2\x82\xac", tags="A"))
    assert text.endswith(" broker-a/3 @17 [A] #k1 #k2 a\\nb\\x1b[2J\\xff€")
    assert text.isprintable()


def test_message_as_json() -> None:
    row = output.message_row(message())
    assert (row["body"], row["keys"], row["storeTimestamp"]) == ("hello", ["k1", "k2"], 7)
    assert "bodyBase64" not in row
    assert output.message_row(message(b"\xff"))["bodyBase64"] == "/w=="


def test_sent_batch_has_a_row_for_each_message() -> None:
    queue = MessageQueue("t", "broker-a", 3)
    rows = list(output.sent_rows(SendResult(SendStatus.OK, "x,y", "", queue, 17)))
    assert [(row["id"], row["offset"]) for row in rows] == [("x", 17), ("y", 18)]


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "[red]a", "count": 5, "storeTimestamp": None}]
    columns = {"name": "NAME", "count": "COUNT", "storeTimestamp": "STORED"}
    output.table(output.Form.TEXT, rows, columns)
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "COUNT", "STORED"]
    assert line.split() == ["[red]a", "5", "-"]
    output.table(output.Form.JSON, rows, columns)
    assert json.loads(capsys.readouterr().out) == rows


def test_numbers_end_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[output.Row] = [{"count": 5, "meanMs": 0.5}, {"count": 1234567, "meanMs": 1234.125}]
    output.table(output.Form.TEXT, rows, {"count": "COUNT", "meanMs": "MEAN MS"})
    _, short, long = capsys.readouterr().out.splitlines()
    assert len(short) == len(long)
    assert short.index("5") == long.index("7") and short.endswith("0.5")


# --------------------------------------------------------------------------------------- reading

NOW = datetime(2026, 1, 31, 12, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("42", 42),
        ("15m", NOW - timedelta(minutes=15)),
        ("2d", NOW - timedelta(days=2)),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12, 0)),
        ("2026-01-31 12:00:00+00:00", datetime.fromisoformat("2026-01-31T12:00:00+00:00")),
    ],
)
def test_from(text: str, start: reading.Start) -> None:
    assert reading.parse_start(text, now=NOW) == start


@pytest.mark.parametrize("text", ["", "first", "-1", "1.5", "15x", "2026-13-01", "9999999999d"]
    + ["0001-01-01"],
)
def test_from_that_is_nothing(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--from .*earliest"):
        reading.parse_start(text, now=NOW)


@pytest.mark.parametrize(
    ("tags", "tag", "matches"),
    [("*", None, True), ("", None, True), ("A", "A", True), ("A || B", "B", True)]
    + [("A", "B", False), ("A", None, False)],
)
def test_tag_filter(tags: str, tag: str | None, matches: bool) -> None:
    assert reading.tag_filter(tags)(message(tags=tag)) is matches


# --------------------------------------------------------------------------------------- sending


def test_groups_are_batches() -> None:
    def made(body: bytes) -> Message:
        return Message("t", body)

    count = sending.BATCH_COUNT
    groups = list(sending.groups([[b"x"] * (count + 1), [], [b"y"]], made))
    assert [len(group) for group in groups] == [count, 1, 1]
    half = bytes(replaying.BATCH_BYTES // 2 + 1)
    assert [len(group) for group in sending.groups([[half, half, b"z"]], made)] == [1, 2]


def test_bodies(tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\x00\n\xff")
    assert list(sending.bodies(None, file, 2)) == [[b"\x00\n\xff"] * 2]
    assert sum(map(len, sending.bodies("a", None, 1000))) == 1000


@pytest.mark.parametrize(
    ("body", "file", "count"), [("a", Path("f"), 1), (None, Path("/absent"), 1), (None, None, 2)]
)
def test_bodies_that_do_not_fit(body: str | None, file: Path | None, count: int) -> None:
    with pytest.raises(ConfigurationError):
        list(sending.bodies(body, file, count))


def test_input_without_an_end_of_line_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless:
        def isatty(self) -> bool:
            return False

        def fileno(self) -> int:
            return 0

    pieces = iter([b"first\n", *[bytes(1 << 20)] * 8])
    monkeypatch.setattr(sys, "stdin", Endless())
    monkeypatch.setattr("pymq.cli.sending.os.read", lambda number, count: next(pieces))
    bodies = sending.bodies(None, None, 1)
    assert next(bodies) == [b"first"]
    with pytest.raises(ConfigurationError, match="line of more than 4194304 B"):
        list(bodies)


def test_properties() -> None:
    assert sending.parse_properties(["a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(ConfigurationError, match="--property"):
            sending.parse_properties([wrong])
