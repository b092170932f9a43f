"""``pymq cluster``: list, state, stats, clean."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pymq.cli import arguments, output
from pymq.errors import ConfigurationError, PymqError, RequestNotSupported
from pymq.protocol.codes import request_name
from pymq.protocol.request_totals import decode_request_totals

if TYPE_CHECKING:
    from pymq.client.admin import BlockingAdmin

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
@arguments.with_shared
def list_brokers(shared: arguments.Shared) -> None:
    """List all brokers: version, messages per second over the last 10 s, messages today."""
    rows = []
    failure: PymqError | None = None
    with shared.admin() as admin:
        info = admin.cluster_info()
        for cluster, names in sorted(info.clusters.items()):
            for name in sorted(names & info.brokers.keys()):
                for broker_id, address in sorted(info.brokers[name].addresses.items()):
                    state: dict[str, str] = {}
                    try:
                        state = admin.broker_state(address)
                    except PymqError as error:
                        failure = failure or error
                    row = {"cluster": cluster, "broker": name, "id": broker_id, "address": address}
                    rows.append(row | _summary(state))
    headings = {
        "cluster": "CLUSTER",
        "broker": "BROKER",
        "id": "ID",
        "address": "ADDRESS",
        "version": "VERSION",
        "putPerSecond": "PUT/S",
        "getPerSecond": "GET/S",
        "putToday": "PUT TODAY",
        "getToday": "GET TODAY",
        "earliestTimestamp": "MESSAGES SINCE",
    }
    output.table(shared.form, rows, headings)
    if failure is not None:
        raise failure


def _summary(state: dict[str, str]) -> dict[str, Any]:
    earliest_ms = _number(state.get("earliestMessageTimeStamp"))
    transferred = state.get("getTransferredTps", state.get("getTransferedTps"))
    return {
        "version": state.get("brokerVersionDesc"),
        "putPerSecond": _first_rate(state.get("putTps")),
        "getPerSecond": _first_rate(transferred),
        "putToday": _today(state, "msgPutTotal"),
        "getToday": _today(state, "msgGetTotal"),
        "earliestTimestamp": earliest_ms if earliest_ms and earliest_ms > 0 else None,
    }


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _first_rate(text: str | None) -> float | None:
    """Return the rate of the last 10 s, which official brokers lack for their first 10 s."""
    try:
        return round(float((text or "").split(" ")[0]), 1)
    except ValueError:
        return None


def _today(state: dict[str, str], total: str) -> int | None:
    now = _number(state.get(total + "TodayNow"))
    morning = _number(state.get(total + "TodayMorning"))
    return None if now is None or morning is None else now - morning


Broker = Annotated[
    str, typer.Argument(metavar="BROKER", help="Its name, or its address HOST:PORT.")
]


def _address(admin: "BlockingAdmin", broker: str) -> str:
    if ":" in broker:
        return broker
    masters = admin.masters()
    if broker not in masters:
        raise ConfigurationError(f"no broker {broker!r} has a master, found {sorted(masters)}")
    return masters[broker]


def _state(admin: "BlockingAdmin", broker: str) -> dict[str, str]:
    address = _address(admin, broker)
    try:
        return admin.broker_state(address)
    except RequestNotSupported as error:
        raise ConfigurationError(
            f"{address} is not a broker, perhaps a name server; `pymq cluster list` shows the "
            "brokers"
        ) from error


@commands.command()
@arguments.with_shared
def state(shared: arguments.Shared, broker: Broker) -> None:
    """Show what a broker reports about itself, under RocketMQ's names."""
    with shared.admin() as admin:
        found = _state(admin, broker)
    output.details(shared.form, dict(sorted(found.items())))


@commands.command()
@arguments.with_shared
def stats(shared: arguments.Shared, broker: Broker) -> None:
    """Show how many requests a pymq broker has answered since its start, and how fast."""
    with shared.admin() as admin:
        found = decode_request_totals(_state(admin, broker))
    if not found:
        raise ConfigurationError(
            f"broker {broker} does not count its requests: it is not a pymq broker, or an old "
            "one; `pymq cluster state` shows what it reports"
        )
    rows = [
        {
            "request": request_name(one.code),
            "code": one.code,
            "count": one.count,
            "errors": one.error_count,
            "abandoned": one.abandoned_count,
            "meanMs": None if one.mean_s is None else round(one.mean_s * 1000, 3),
            "maxMs": round(one.max_s * 1000, 3),
        }
        for one in found
    ]
    headings = {
        "request": "REQUEST",
        "code": "CODE",
        "count": "COUNT",
        "errors": "ERRORS",
        "abandoned": "ABANDONED",
        "meanMs": "MEAN MS",
        "maxMs": "MAX MS",
    }
    output.table(shared.form, rows, headings)


@commands.command()
@arguments.with_shared
def clean(
    shared: arguments.Shared,
    broker: Broker,
    queues: Annotated[
        bool,
        typer.Option(
            "--queues",
            help="Also delete empty queues. On official brokers those of idle topics then start at "
            "offset 0 again, and their consumers miss messages.",
        ),
    ] = False,
) -> None:
    """Let a broker delete what has expired (fileReservedTime) now, not at deleteWhen."""
    with shared.admin() as admin:
        address = _address(admin, broker)
        admin.delete_expired_log(address)
        if queues:
            admin.clean_expired_queues(address)
    row = {"broker": broker, "address": address, "log": True, "queues": queues}
    headings = {"broker": "BROKER", "address": "ADDRESS", "log": "LOG", "queues": "QUEUES"}
    output.table(shared.form, [row], headings)
