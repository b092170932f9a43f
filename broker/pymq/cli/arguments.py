"""Options that the client commands share, and the client they make."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import logs
from pymq.cli.output import Form

if TYPE_CHECKING:
    from pymq.client.admin import BlockingAdmin
    from pymq.client.blocking import BlockingClient

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
DEFAULT_TIMEOUT_S = 5.0


def _log_more(context: typer.Context, count: int) -> int:
    context.meta["verbose"] = count
    return _set_up_logs(context, count)


def _log_less(context: typer.Context, count: int) -> int:
    context.meta["quiet"] = count
    return _set_up_logs(context, count)


def _set_up_logs(context: typer.Context, count: int) -> int:
    if not context.resilient_parsing:
        verbose, quiet = context.meta.get("verbose", 0), context.meta.get("quiet", 0)
        logs.set_up(logs.level_for(logging.WARNING, verbose=verbose, quiet=quiet))
    return count


NameServer = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT[;...]",
        help="Name servers of the cluster.",
    ),
]
Output = Annotated[
    Form, typer.Option("--output", "-o", help="Text for people, or JSON for programs.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long to wait for an answer."
    ),
]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, callback=_log_more, help="Log more (-vv: all)."),
]
Quiet = Annotated[
    int, typer.Option("--quiet", "-q", count=True, callback=_log_less, help="Log errors only.")
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="Only on the brokers of this cluster.")
]


def client(name_server: str, timeout_s: float) -> "BlockingClient":
    """Return a client that gives up after ``timeout_s``; use it in a ``with`` statement.

    Raises:
        ConfigurationError: ``name_server`` is no list of addresses.
    """
    from pymq.client.blocking import BlockingClient  # here, as in all of these: --help is quick
    from pymq.client.config import ClientConfig, parse_name_servers

    name_servers = parse_name_servers(name_server)
    config = ClientConfig(
        name_servers=name_servers,
        timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
        read_deadline_s=timeout_s,
    )
    return BlockingClient(name_servers, config=config)


@contextmanager
def admin(name_server: str, timeout_s: float) -> Iterator["BlockingAdmin"]:
    """Give the administration over a ``client`` that is closed behind it.

    Raises:
        ConfigurationError: ``name_server`` is no list of addresses.
    """
    from pymq.client.admin import BlockingAdmin

    with client(name_server, timeout_s) as connected:
        yield BlockingAdmin(connected)
