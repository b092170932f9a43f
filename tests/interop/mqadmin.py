"""The official ``mqadmin``, command by command, inside the JVM of a client.

A command writes to standard output, which is caught here: only one may run at a time. Some run for
ever; those are interrupted, as Ctrl-C would do.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.interop.java_values import call
from tests.interop.jvm import JavaClient

#: A command that has taken this long is waiting for a thread of its client to end, 3 s.
_HURRY_AFTER_S: Final = 0.2
_HURRY_INTERVAL_S: Final = 0.1
_COMMAND_NAME: Final = re.compile(r"^ {3}(\S+)", re.MULTILINE)
_OPTION: Final = re.compile(r"^ (-[A-Za-z]+),", re.MULTILINE)
_SHORT_OPTION: Final = re.compile(r"-[A-Za-z]+")


class Mqadmin:
    """Runs commands of one version."""

    def __init__(self, client: JavaClient) -> None:
        self.version = client.version
        self._client = client
        self._startup = client.jvm.org.apache.rocketmq.tools.command.MQAdminStartup
        list_name = "subCommandList" if client.version.startswith("4.") else "SUB_COMMANDS"
        known = client.jvm.java.lang.Class.forName(
            "org.apache.rocketmq.tools.command.MQAdminStartup"
        ).getDeclaredField(list_name)
        known.setAccessible(True)
        #: Made again by each call of ``main0``: some do not work a second time.
        self._objects = known.get(None)
        self._options: dict[str, set[str]] = {}

    def commands(self) -> set[str]:
        """Return the names of all commands there are."""
        return set(_COMMAND_NAME.findall(self._run([])))

    def run(self, name_server: str | None, *arguments: str, endless: bool = False) -> str:
        """Return what a command prints, its stack traces included, and the files it writes.

        Args:
            name_server: its ``host:port``; None for a command that is told where to go.
            arguments: the command's name and arguments; ``{dir}`` is a directory of its own, whose
                files are part of the result.
            endless: it repeats itself at intervals: end it when it waits for the next time.
        """
        self._check_options(*arguments)
        with tempfile.TemporaryDirectory(prefix="mqadmin-") as directory:
            given = [argument.replace("{dir}", directory) for argument in arguments]
            where = [] if name_server is None else ["-n", name_server]
            printed = self._run([*given, *where], endless)
            files = [
                f"--- {path.name}\n{path.read_text()}\n"
                for path in sorted(Path(directory).rglob("*"))
                if path.is_file()
            ]
            return "".join([printed, *files]).replace(directory, "<dir>")

    def _check_options(self, name: str, *arguments: str) -> None:
        """Find options that a command does not have: it would end the whole JVM.

        Raises:
            ValueError: there are some.
        """
        if name not in self._options:
            self._options[name] = set(_OPTION.findall(self._run(["help", name])))
        given = {argument for argument in arguments if _SHORT_OPTION.fullmatch(argument)}
        if strange := given - self._options[name]:
            raise ValueError(f"{name} of {self.version} has no option {strange}")

    def _run(self, arguments: list[str], endless: bool = False) -> str:
        jvm = self._client.jvm
        system = jvm.java.lang.System
        self._objects.removeAll(self._objects)  # py4j has a clear() of its own, which fails
        given = self._client.gateway.new_array(jvm.java.lang.String, len(arguments))
        for at, argument in enumerate(arguments):
            given[at] = argument
        printed = jvm.java.io.ByteArrayOutputStream()
        stream = jvm.java.io.PrintStream(printed, True, "UTF-8")
        before = (system.out, system.err)
        system.setOut(stream)
        system.setErr(stream)
        try:
            with self._watched(endless):
                call(self._startup.main0, given, None)
        finally:
            system.setOut(before[0])
            system.setErr(before[1])
        return str(printed.toString("UTF-8"))

    @contextmanager
    def _watched(self, endless: bool) -> Iterator[None]:
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, endless))
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, done: threading.Event, endless: bool) -> None:
        if done.wait(_HURRY_AFTER_S):
            return
        while not done.wait(_HURRY_INTERVAL_S):
            for thread, stack in self._threads():
                # A client that shuts down joins this thread, which may sleep for 3 s by then; one
                # that lives goes on after an interrupt.
                is_sleeper = thread.getName() == "NettyEventExecutor"
                if is_sleeper or (endless and _is_command_asleep(stack)):
                    thread.interrupt()

    def _threads(self) -> Iterator[tuple[Any, Any]]:
        for entry in self._client.jvm.java.lang.Thread.getAllStackTraces().entrySet():
            yield entry.getKey(), entry.getValue()


def _is_command_asleep(stack: Any) -> bool:
    return (
        len(stack) > 0
        and str(stack[0].getMethodName()) == "sleep"
        and any(str(frame.getClassName()).endswith("MQAdminStartup") for frame in stack)
    )
