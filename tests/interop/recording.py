"""Writes ``tests/cluster/java_requests.json``: what official clients and tools ask of our servers.

    python -m tests.interop.recording tests/interop/test_java_clients_on_pymq.py ...

runs tests of this folder whose servers are ours and adds to the file, for each request code and set
of fields, the first request of that kind. The fuzzer changes them at random.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any, Final

import pytest
from tests.cluster.fuzz_requests import RECORDED

from pymq.net import server
from pymq.protocol.codes import LanguageCode
from pymq.protocol.command import Command
from pymq.protocol.framing import Incoming, commands_of

#: Larger bodies are of no more use.
BODY_BYTES_MAX: Final = 2048


class Recorder:
    """Keeps one request of each kind."""

    def __init__(self) -> None:
        known = json.loads(RECORDED.read_text()) if RECORDED.exists() else []
        self._found = {_kind(one): one for one in known}

    def take(self, commands: list[Incoming]) -> None:
        """Look at what arrived on a connection."""
        for incoming in commands:
            for command in [incoming] if isinstance(incoming, Command) else commands_of(incoming):
                if (
                    not command.is_response
                    and command.language == LanguageCode.JAVA
                    and len(command.body) <= BODY_BYTES_MAX
                ):
                    self._add(command)

    def _add(self, command: Command) -> None:
        one: dict[str, Any] = {"code": command.code, "version": command.version}
        if command.fields:
            one["fields"] = command.fields
        if len(command.body):
            one["body"] = base64.b64encode(command.body).decode()
        self._found.setdefault(_kind(one), one)

    def save(self) -> None:
        """Write the file."""
        lines = ",\n".join(
            json.dumps(self._found[kind], sort_keys=True) for kind in sorted(self._found)
        )
        RECORDED.write_text(f"[\n{lines}\n]\n")


def _kind(one: dict[str, Any]) -> tuple[int, tuple[str, ...], bool]:
    return one["code"], tuple(sorted(one.get("fields", {}))), "body" in one


def main(arguments: list[str]) -> int:
    """Run tests and record what is sent meanwhile."""
    recorder = Recorder()
    commands_received = server.ServerConnection.commands_received

    def record(connection: server.ServerConnection, commands: list[Incoming]) -> None:
        recorder.take(commands)
        commands_received(connection, commands)

    server.ServerConnection.commands_received = record  # type: ignore[method-assign]
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments])
    recorder.save()
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
