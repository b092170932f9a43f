"""``pymq namesrv``, ``pymq broker``, ``pymq controller`` and ``pymq up``.

These parse their arguments with argparse: typer would double our share of the start-up time,
and a machine that only serves need not have it installed.
"""

import argparse
import contextlib
import errno
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from pymq.cli import logs, output, streams
from pymq.cli.exits import EXIT_TEXTS, Exit, forbidden
from pymq.cli.home import home_directory
from pymq.errors import PymqError

_log = logging.getLogger(__name__)

DEFAULT_STORE = "pymq-store"
DEFAULT_NAMESRV_PORT = 9876
DEFAULT_BROKER_PORT = 10911
#: On a developer's well-filled disk ``pymq up`` keeps working while this much is free, whatever the
#: percentage.
DISK_FREE_ENOUGH_BYTES = 1 << 30

#: What an acknowledged message survives, by flush mode.
DURABILITY = {
    "sync": "an acknowledged message survives a crash and a power loss",
    "async": "an acknowledged message survives a crash of pymq; a power loss may take the last "
    "moments",
    "memory": "no message outlives pymq",
}


class _OneLineParser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def run(command: str, summary: str, arguments: Sequence[str]) -> Exit:
    """Run one of the servers until a signal ends it.

    Args:
        command: ``namesrv``, ``broker``, ``controller`` or ``up``.
        summary: what it does, for its ``--help``.
        arguments: those after the command.

    Returns:
        ``Exit.OK``, or ``Exit.USAGE`` if it could not start; the reason is on standard error.
    """
    options = _parser(command, summary).parse_args(arguments)
    usual = logging.WARNING if command == "up" else logging.INFO
    logs.set_up(logs.level_for(usual, verbose=options.verbose, quiet=options.quiet))
    try:
        _COMMANDS[command](options)
    except (PymqError, PermissionError) as error:
        _log.debug("stopped by", exc_info=error)
        cause = error.__cause__
        is_taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        how = " (--namesrv-port, --broker-port)" if command == "up" and is_taken else ""
        said = forbidden(error) if isinstance(error, PermissionError) else str(error)
        output.note(f"pymq {command}: {said}{how}")
        return Exit.USAGE
    return Exit.OK


# ---------------------------------------------------------------------------------- arguments


def _parser(command: str, summary: str) -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog=f"pymq {command}",
        description=summary,
        epilog="exit status: "
        + "; ".join(f"{code} {EXIT_TEXTS[code]}" for code in (Exit.OK, Exit.USAGE)),
        allow_abbrev=False,
    )
    if command == "up":
        _add_up_arguments(parser)
    else:
        _add_server_arguments(parser, command)
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help="form of the message that it is ready (default: text)",
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more")
    parser.add_argument("-q", "--quiet", action="count", default=0, help="log less")
    return parser


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        type=_directory,
        default=Path(DEFAULT_STORE),
        metavar="DIR",
        help=f"directory of the messages (default: ./{DEFAULT_STORE}), created if necessary",
    )
    where.add_argument(
        "--memory", action="store_true", help="keep nothing: for tests, in any language"
    )
    parser.add_argument(
        "--ports-file",
        type=Path,
        metavar="FILE",
        help="write the addresses there, as JSON, when all is ready, and remove it at the end; "
        "then any free ports are the default",
    )
    for name, help_text in (
        (
            "--bind",
            "listen on this address, 0.0.0.0 in a container (default: 127.0.0.1); whoever reaches "
            "it may read and write everything",
        ),
        ("--advertise", "have clients connect to this IP address (default: that of --bind)"),
    ):
        parser.add_argument(name, metavar="HOST", help=help_text)
    for name, default in (
        ("--namesrv-port", DEFAULT_NAMESRV_PORT),
        ("--broker-port", DEFAULT_BROKER_PORT),
    ):
        parser.add_argument(
            name,
            type=_port,
            metavar="N",
            help=f"port, 0 for any free one (default: {default})",
        )
    parser.add_argument(
        "--flush",
        choices=("sync", "async"),
        default="sync",
        help="acknowledge a message when it is on the disk, or before (default: sync)",
    )


def _add_server_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="RocketMQ's properties file (4.5 to 5.4)",
    )
    if command == "broker":
        parser.add_argument(
            "-n",
            "--namesrv-addr",
            metavar="HOST:PORT[;HOST:PORT...]",
            help="name servers to register with (default: namesrvAddr of the file, else "
            "NAMESRV_ADDR of the environment)",
        )
    if command == "controller":
        parser.add_argument(
            "--store",
            metavar="file:DIR|etcd:URL[,URL...]",
            help="where the groups are kept: a directory of this machine, for one controller, or "
            "an etcd cluster, for any number of them (default: pymqControllerStore of the file)",
        )
    parser.add_argument(
        "-p",
        "--print-config",
        action="store_true",
        help="print the effective configuration as properties and exit",
    )


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port, expected 0..65535")


def _directory(text: str) -> Path:
    if text:
        return Path(text)
    # A variable of a script that is not set: files would be made wherever it runs.
    raise argparse.ArgumentTypeError("it is empty, expected a directory")


# ----------------------------------------------------------------------------------- commands


def _namesrv(options: argparse.Namespace) -> None:
    from pymq.cli import configuration, running
    from pymq.namesrv.server import NameServer

    config = configuration.name_server_config(options.config, home=home_directory())
    if options.print_config:
        streams.write(configuration.effective_text(config))
        return
    running.raise_file_limit()

    async def serve() -> None:
        async with _serving(NameServer(config)) as name_server:
            _announce(options.output, {"nameServer": name_server.address})
            await _forever()

    running.run(serve)


def _broker(options: argparse.Namespace) -> None:
    from pymq.broker.broker import Broker
    from pymq.cli import configuration, running

    config, replication, store = configuration.broker_configs(
        options.config,
        name_servers=options.namesrv_addr,
        environment=os.environ,
        home=home_directory(),
    )
    if options.print_config:
        streams.write(configuration.effective_text(config, replication, store))
        return
    running.raise_file_limit()

    async def serve() -> None:
        async with _serving(Broker(config, store, replication=replication)) as broker:
            if not config.name_servers:
                _log.warning(
                    "no name server: clients cannot find this broker's topics; give -n host:port, "
                    "or namesrvAddr in the file"
                )
            _announce(
                options.output,
                {
                    "broker": broker.address,
                    "brokerName": config.name,
                    "cluster": config.cluster,
                    "registeredWith": ";".join(config.name_servers),
                    **_store_facts(store.root_path, store.flush_mode.value),
                },
            )
            await _forever()

    running.run(serve)


def _controller(options: argparse.Namespace) -> None:
    from pymq.cli import configuration, running
    from pymq.controller.server import Controller

    config = configuration.controller_config(options.config, store=options.store)
    if options.print_config:
        streams.write(configuration.effective_text(config))
        return
    running.raise_file_limit()

    async def serve() -> None:
        async with _serving(Controller(config)) as controller:
            facts = {"controller": controller.address, "store": config.store}
            _announce(options.output, {**facts, "durability": controller.store.durability})
            await _forever()

    running.run(serve)


def _up(options: argparse.Namespace) -> None:
    from pymq.broker.broker import Broker
    from pymq.broker.config import BrokerConfig
    from pymq.cli import running, temporary
    from pymq.namesrv.config import NamesrvConfig
    from pymq.namesrv.server import NameServer
    from pymq.protocol.addresses import join_address
    from pymq.store import FlushMode, StoreConfig

    by_default = (0, 0) if options.ports_file else (DEFAULT_NAMESRV_PORT, DEFAULT_BROKER_PORT)
    given = options.namesrv_port, options.broker_port
    namesrv_port, broker_port = (
        usual if port is None else port for port, usual in zip(given, by_default, strict=True)
    )
    host = options.bind or "127.0.0.1"
    settings: dict[str, Any] = {
        "flush_mode": FlushMode(options.flush),
        "disk_free_enough_bytes": DISK_FREE_ENOUGH_BYTES,
    }
    if options.memory:
        settings = {
            "segment_bytes": temporary.SEGMENT_BYTES,
            "disk_free_enough_bytes": temporary.DISK_FREE_ENOUGH_BYTES,
        }
    running.raise_file_limit()

    async def serve() -> None:
        name_server = NameServer(
            NamesrvConfig(
                host=host, port=namesrv_port, kv_config_path=root / "namesrv" / "kvConfig.json"
            )
        )
        async with _serving(name_server):
            config = BrokerConfig(
                bind_address=host,
                advertised_address=options.advertise,
                listen_port=broker_port,
                name_servers=(name_server.address,),
            )
            store = StoreConfig(root_path=root, **settings)
            async with _serving(Broker(config, store)) as broker:
                facts = {
                    "nameServer": join_address(options.advertise, name_server.port)
                    if options.advertise
                    else name_server.address,
                    "broker": broker.address,
                    "brokerName": config.name,
                    **_store_facts(root, "memory" if options.memory else options.flush),
                }
                if ports_file is not None:
                    stack.callback(ports_file.remove)
                    ports_file.write(facts)
                _announce(options.output, facts)
                await _forever()

    with contextlib.ExitStack() as stack:
        ports_file = temporary.PortsFile(options.ports_file) if options.ports_file else None
        root = options.store.absolute()
        if options.memory:
            root = stack.enter_context(temporary.memory_store())
        running.run(serve)


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "namesrv": _namesrv,
    "broker": _broker,
    "controller": _controller,
    "up": _up,
}


# -------------------------------------------------------------------------------------- parts


class _Server(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


_S = TypeVar("_S", bound=_Server)


@contextlib.asynccontextmanager
async def _serving(server: _S) -> AsyncIterator[_S]:
    """Start a server, and close it whatever happens."""
    try:
        await server.start()
        yield server
    finally:
        await server.close()


async def _forever() -> None:
    """Wait until a signal cancels it."""
    import asyncio  # here, as everything that servers import, to keep --help quick

    await asyncio.get_running_loop().create_future()


def _store_facts(root: Path, flush: str) -> dict[str, str]:
    return {"store": str(root), "flush": flush, "durability": DURABILITY[flush]}


def _announce(form: str, facts: dict[str, str]) -> None:
    """Print the addresses, and that the server is ready."""
    if form == "json":
        _write(json.dumps({**facts, "ready": True}) + "\n")
        return
    lines = [f"{label:<14}{facts[name]}" for name, label in _LABELS.items() if facts.get(name)]
    _write("\n".join([*lines, "ready; Ctrl-C or SIGTERM stops it"]) + "\n")


_LABELS = {
    "nameServer": "name server",
    "controller": "controller",
    "broker": "broker",
    "brokerName": "broker name",
    "cluster": "cluster",
    "registeredWith": "registers at",
    "store": "store",
    "flush": "flush",
    "durability": "durability",
}


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:  # nobody reads it any more; the servers keep running
        _log.debug("standard output is closed: %s", error)
