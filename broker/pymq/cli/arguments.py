"""Options that the client commands share, and the client made from them."""

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from pymq.cli import logs
from pymq.cli.home import home_directory
from pymq.cli.output import Form
from pymq.errors import ConfigurationError

if TYPE_CHECKING:
    from pymq.blocking import Admin
    from pymq.cli.profiles import Profile
    from pymq.client.cluster.network import Network
    from pymq.client.sockets.blocking_client import BlockingClient

P = ParamSpec("P")

TIMEOUT_S = 5.0


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
    str | None,
    typer.Option(
        "--name-server",
        "-n",
        metavar="HOST:PORT[;...]",
        help="Name servers of the cluster, or the URL at which they are looked up.  [default: of "
        "the profile, or NAMESRV_ADDR, or 127.0.0.1:9876]",
        show_default=False,
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="The cluster that config.toml has under this name."
    ),
]
Output = Annotated[
    Form, typer.Option("--output", "-o", help="Text for people, or JSON for programs.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600,
        help="How long to wait for an answer.  [default: 5]",
        show_default=False,
    ),
]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, callback=_log_more, help="Log more (-vv: all)."),
]
Quiet = Annotated[
    int, typer.Option("--quiet", "-q", count=True, callback=_log_less, help="Log errors only.")
]
AddressMap = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="ADDRESS=ADDRESS",
        help="Where a broker is reached instead of at what it advertises: HOST:PORT=HOST:PORT, or "
        "HOST=HOST; may be repeated.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="In which topics and groups are: orders is NAME%orders to brokers.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="How to print a message, such as '{queue}:{offset} {keys} {body}\\n'; the names are "
        "those of -o json, and stored, born.",
    ),
]
BodyOnly = Annotated[
    bool,
    typer.Option(
        "--body-only",
        help="Print nothing but the bodies, unchanged, with a line feed after each; of binary "
        "bodies -o json tells where they end.",
    ),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="Only on the brokers of this cluster.")
]


@dataclass(frozen=True)  # without slots: it caches
class Shared:
    """The options of every client command."""

    given_name_server: NameServer = None
    profile_name: ProfileName = None
    form: Output = Form.TEXT
    given_timeout_s: Timeout = None
    mapped: AddressMap = None
    given_namespace: Namespace = None
    verbose: Verbose = 0
    quiet: Quiet = 0

    @functools.cached_property
    def profile(self) -> "Profile":
        """The profile that counts.

        Raises:
            ConfigurationError: there is no such profile, or its file is malformed.
        """
        from pymq.cli.profiles import chosen

        return chosen(self.profile_name, os.environ, home_directory())

    @property
    def name_server(self) -> str:
        """The name servers of the cluster."""
        return self.given_name_server or str(self.profile.name_server)

    @property
    def timeout_s(self) -> float:
        """How long to wait for an answer."""
        if self.given_timeout_s is not None:
            return self.given_timeout_s
        given_s = self.profile.timeout_s
        return TIMEOUT_S if given_s is None else given_s

    @functools.cached_property
    def network(self) -> "Network":
        """Where brokers are reached, and the namespace of what is named.

        Raises:
            ConfigurationError: ``mapped`` or the namespace is malformed.
        """
        from pymq.client.cluster.network import Network

        pairs = dict(self.profile.broker_address_map)
        for pair in self.mapped or ():
            advertised, equals, reached = pair.partition("=")
            if not (advertised and equals and reached):
                raise ConfigurationError(
                    f"--map {pair!r}: expected ADDRESS=ADDRESS, such as "
                    "172.17.0.3:10911=127.0.0.1:10911"
                )
            pairs[advertised] = reached
        namespace = self.given_namespace or self.profile.namespace
        return Network(broker_address_map=pairs, namespace=namespace)

    @property
    def plain_network(self) -> "Network":
        """Where brokers are reached, for clients that are told whole names (``network.wrap``)."""
        return dataclasses.replace(self.network, namespace=None)

    def client(self, name_server: str | None = None) -> "BlockingClient":
        """Return a client that gives up after ``timeout_s``; use it in a ``with`` statement.

        It knows of no namespace: ``network.wrap`` names for it.

        Args:
            name_server: of another cluster than this one.

        Raises:
            ConfigurationError: ``name_server`` is not a list of addresses.
        """
        from pymq.client.cluster.config import ClientConfig, parse_name_servers
        from pymq.client.sockets.blocking_client import (
            BlockingClient,  # here: --help is to be quick
        )

        name_servers = parse_name_servers(name_server or self.name_server)
        config = ClientConfig(
            name_servers=name_servers,
            timeout_s=self.timeout_s,
            connect_timeout_s=self.timeout_s,
            read_deadline_s=self.timeout_s,
            network=self.plain_network,
        )
        return BlockingClient(name_servers, config=config)

    def admin(self) -> "Admin":
        """Return the administration of the cluster; use it in a ``with`` statement.

        Raises:
            ConfigurationError: ``name_server`` is not a list of addresses.
        """
        from pymq.client.threaded.admin import Admin

        return Admin(
            self.name_server,
            timeout_s=self.timeout_s,
            connect_timeout_s=self.timeout_s,
            network=self.network,
        )

    @contextmanager
    def changing(self) -> "Iterator[Admin]":
        """Open ``admin()`` for a change, of which Ctrl-C says that it may be done."""
        with self.admin() as admin:
            try:
                yield admin
            except KeyboardInterrupt as error:
                error.add_note("interrupted: it may be done")
                raise


_OPTIONS = inspect.signature(Shared).parameters


def with_shared(command: Callable[Concatenate[Shared, P], None]) -> Callable[..., None]:
    """Return a command that also has the shared options, and passes them on as first argument.

    Typer reads a command's options from its signature. It gets the command's own signature with
    the shared options instead of that argument, after all others.
    """
    own = list(inspect.signature(command).parameters.values())[1:]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        shared = Shared(**{name: given.pop(name) for name in _OPTIONS})
        command(shared, **given)  # type: ignore[call-arg]

    parameters = [*own, *_OPTIONS.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
