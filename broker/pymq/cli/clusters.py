"""``pymq cluster``: list, state."""

from typing import Annotated, Any

import typer

from pymq.cli import arguments, output
from pymq.errors import ConfigurationError, PymqError

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
@arguments.with_shared
def list_brokers(shared: arguments.Shared) -> None:
    """List all brokers: version, messages a second over the last 10 s, messages today."""
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
    """Return the rate of the last 10 s; official brokers have none in their first 10 s."""
    try:
        return round(float((text or "").split(" ")[0]), 1)
    except ValueError:
        return None


def _today(state: dict[str, str], total: str) -> int | None:
    now = _number(state.get(total + "TodayNow"))
    morning = _number(state.get(total + "TodayMorning"))
    return None if now is None or morning is None else now - morning


@commands.command()
@arguments.with_shared
def state(
    shared: arguments.Shared,
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", help="Its name, or its address HOST:PORT.")
    ],
) -> None:
    """Show what a broker says about itself, under RocketMQ's names."""
    with shared.admin() as admin:
        address = broker
        if ":" not in broker:
            masters = admin.masters()
            if broker not in masters:
                raise ConfigurationError(
                    f"broker {broker!r} has no master here, found {sorted(masters)}"
                )
            address = masters[broker]
        found = admin.broker_state(address)
    output.details(shared.form, dict(sorted(found.items())))
