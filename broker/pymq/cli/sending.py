"""Implements ``pymq send``; its arguments are in ``messages``."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from pymq.cli import output, replaying
from pymq.cli.queues import choose
from pymq.cli.streams import OutputFailed
from pymq.client.cluster.network import Network
from pymq.client.operations import BODY_BYTES_MAX
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.message import Message

#: Lines that arrive together are sent together, up to this limit and ``replaying.BATCH_BYTES``.
BATCH_COUNT = replaying.BATCH_COUNT
_READ_BYTES = 1 << 20


def send(
    client: BlockingClient,
    topic: str,
    arrivals: Iterable[list[bytes]],
    *,
    tags: str | None,
    keys: list[str] | None,
    properties: dict[str, str],
    queue: str | None,
    form: output.Form,
    named: Callable[[str], str] = str,
) -> None:
    """Send bodies, those that arrive together as batches, and print where each is stored.

    Raises:
        ConfigurationError: there is nothing to send, or no such queue.
        PymqError: a message was refused, could not be sent, or is not proven to be safe.
        OutputFailed: what was sent cannot be told; a note says how many were.
    """
    sent = unproven = 0
    target = None
    if queue is not None:
        target = choose(client.write_queues(topic), topic, queue, use="writable")

    def made(body: bytes) -> Message:
        return Message(topic, body, tags=tags, keys=keys or None, properties=properties)

    for messages in groups(arrivals, made):
        if len(messages) == 1:
            result = client.send(messages[0], target)
        else:
            result = client.send_batch(target, messages)
        sent += len(messages)
        unproven += result.durability_unknown * len(messages)
        try:
            for row in output.sent_rows(result, named):
                is_json = form is output.Form.JSON
                output.line(json.dumps(row) if is_json else output.sent_text(row))
        except OutputFailed as error:
            error.add_note(f"{sent} messages were sent before")
            raise
    if not sent:
        raise ConfigurationError("nothing to send: standard input has only empty lines")
    if unproven:
        raise PymqError(f"{unproven} of {sent} messages are stored, but not proven to be safe")


def parse_properties(pairs: Iterable[str]) -> dict[str, str]:
    """Return the properties given as ``NAME=VALUE``.

    Raises:
        ConfigurationError: one is not of that form.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ConfigurationError(f"--property {pair!r}: expected NAME=VALUE")
        found[name] = value
    return found


def bodies(body: str | None, file: Path | None, count: int) -> Iterator[list[bytes]]:
    """Yield the bodies to send, together if they are available at the same time.

    Args:
        body: from the command line.
        file: contains the body instead; without both, and with ``-``, each line of standard
            input is a body.
        count: how often to send it.

    Raises:
        ConfigurationError: the three cannot be combined, the file cannot be read, or a line of
            standard input is too long.
    """
    if body is not None and file is not None:
        raise ConfigurationError("BODY and --file: expected one of them")
    if body == "-" or (file is not None and str(file) == "-"):
        body = file = None
    if body is None and file is None:
        if count != 1:
            raise ConfigurationError("--count: expected with BODY or --file only")
        yield from _lines_of_input()
        return
    if file is not None:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"--file {file}: {error.strerror or error}") from error
    else:
        assert body is not None
        raw = body.encode("utf-8", "surrogateescape")  # as it was on the command line
    for first in range(0, count, BATCH_COUNT):
        yield [raw] * min(BATCH_COUNT, count - first)


def _lines_of_input() -> Iterator[list[bytes]]:
    """Yield lines of standard input as they arrive, without line ends; empty ones are skipped."""
    if sys.stdin.isatty():
        output.note("each line is a message; Ctrl-D ends")
    rest = b""
    while data := os.read(sys.stdin.fileno(), _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield [line for line in lines if line]
        if len(rest) > BODY_BYTES_MAX:
            raise ConfigurationError(
                f"standard input has a line of more than {BODY_BYTES_MAX} B, expected one message "
                "per line; send the contents of a file with --file"
            )
    if rest:
        yield [rest]


def groups(
    arrivals: Iterable[list[bytes]], made: Callable[[bytes], Message]
) -> Iterator[list[Message]]:
    """Yield the messages of bodies, in one batch or more for what arrived together."""
    for together in arrivals:
        yield from replaying.batches(map(made, together))


def send_json(
    client: BlockingClient,
    topic: str | None,
    file: Path,
    *,
    network: Network,
    queue: str | None,
    form: output.Form,
) -> None:
    """Send what ``consume -o json`` has printed, and print where each message is stored.

    Args:
        client: sends.
        topic: where to; ``None``: where each line says.
        file: of the lines; ``-``: standard input.
        network: what brokers call topics.
        queue: of ``topic``.

    Raises:
        ConfigurationError: a line is not such a message; those before it are sent.
        PymqError: a message was refused, could not be sent, or is not proven to be safe.
    """
    target = None
    if queue is not None:
        if topic is None:
            raise ConfigurationError("--queue: expected with TOPIC only")
        whole = network.wrap(topic)
        target = choose(client.write_queues(whole), whole, queue, use="writable")
    with _opened(file) as lines:
        messages = (
            replaying.message_of_line(line, number, topic, network.wrap)
            for number, line in enumerate(lines, 1)
            if line.strip()
        )
        if not replaying.send_all(client, messages, target, form=form, named=network.unwrap):
            raise ConfigurationError(f"nothing to send: {file} has only empty lines")


def _opened(file: Path) -> AbstractContextManager[BinaryIO]:
    if str(file) == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"--from-json {file}: {error.strerror or error}") from error
