"""``pymq cluster``: list, promote, demote, state, stats, clean."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pymq.cli import arguments, output
from pymq.errors import ConfigurationError, RequestNotSupported
from pymq.protocol.codes import request_name
from pymq.protocol.request_totals import decode_request_totals

if TYPE_CHECKING:
    from pymq.blocking import Admin
    from pymq.cli.replicas import Group, Replica

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
@arguments.with_shared
def list_brokers(shared: arguments.Shared) -> None:
    """List all brokers: role, lag, version, messages per second over the last 10 s and today.

    STATE is up, silent (it takes connections and does not answer), away (it does not), or
    unregistered (its controller knows it, the name servers do not). EPOCH is the last one in its
    log, IN SYNC whether it has all that is acknowledged, BEHIND what it lacks of its master's log,
    and for how long. A dash: there is none, or it is not known, as of RocketMQ 4.9.
    """
    from pymq.cli.replicas import Groups  # here: --help is to be quick

    rows: list[output.Row] = []
    with shared.admin() as admin:
        groups = Groups(admin)
        for group in groups.find():
            rows += (_broker_row(group, one) for one in group.replicas)
    for failure in groups.failures:
        output.note(f"which brokers are in sync is not known: {failure}")
    if shared.form is output.Form.TEXT:
        rows = [{key: _word(value) for key, value in row.items()} for row in rows]
    output.table(shared.form, rows, _HEADINGS)


_HEADINGS = {
    "cluster": "CLUSTER",
    "broker": "BROKER",
    "id": "ID",
    "address": "ADDRESS",
    "state": "STATE",
    "role": "ROLE",
    "controlled": "CONTROLLER",
    "memberId": "MEMBER",
    "epoch": "EPOCH",
    "inSync": "IN SYNC",
    "behindBytes": "BEHIND B",
    "behindSeconds": "BEHIND S",
    "version": "VERSION",
    "putPerSecond": "PUT/S",
    "getPerSecond": "GET/S",
    "putToday": "PUT TODAY",
    "getToday": "GET TODAY",
    "earliestTimestamp": "MESSAGES SINCE",
}


def _word(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _broker_row(group: "Group", replica: "Replica") -> output.Row:
    behind_bytes, behind_s = group.lag(replica)
    problem = replica.report.problem
    return {
        "cluster": group.cluster,
        "broker": group.name,
        "id": replica.broker_id,
        "address": replica.address,
        "state": replica.state,
        "problem": None if problem is None else str(problem),
        "role": replica.role,
        "controlled": None if group.controllers is None else bool(group.controllers),
        "memberId": replica.member_id,
        "epoch": replica.epoch,
        "inSync": replica.in_sync,
        "behindBytes": behind_bytes,
        "behindSeconds": behind_s,
        **_summary(replica.report.state or {}),
    }


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


BrokerName = Annotated[str, typer.Argument(metavar="BROKER_NAME", help="The group of brokers.")]
Controllers = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="HOST:PORT[;...]",
        help="Its controllers, of pymq or RocketMQ; by default those that its brokers name.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would happen, and with what status.")
]
Force = Annotated[bool, typer.Option("--force", help="Even if acknowledged messages may be lost.")]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0.1,
        max=3600,
        help="How long until the new master serves clients.",
    ),
]


@commands.command()
@arguments.with_shared
def promote(
    shared: arguments.Shared,
    broker_name: BrokerName,
    to: Annotated[
        str, typer.Option("--to", metavar="ID|ADDRESS", help="MEMBER or ADDRESS in the list.")
    ],
    controller: Controllers = None,
    dry_run: DryRun = False,
    force: Force = False,
    wait_s: Wait = 30.0,
) -> None:
    """Make a broker the master of its group; returns when it serves, and says after how long.

    It is refused if acknowledged messages could be lost. Groups without a controller are told the
    manual way.
    """
    _hand_over(shared, broker_name, to, controller, dry_run=dry_run, force=force, wait_s=wait_s)


@commands.command()
@arguments.with_shared
def demote(
    shared: arguments.Shared,
    broker_name: BrokerName,
    controller: Controllers = None,
    dry_run: DryRun = False,
    wait_s: Wait = 30.0,
) -> None:
    """Have another broker of the group take over from its master, the best one that is in sync."""
    _hand_over(shared, broker_name, None, controller, dry_run=dry_run, force=False, wait_s=wait_s)


def _hand_over(
    shared: arguments.Shared,
    broker_name: str,
    to: str | None,
    controller: str | None,
    *,
    dry_run: bool,
    force: bool,
    wait_s: float,
) -> None:
    from pymq.cli.handover import Handover
    from pymq.client.cluster.config import parse_name_servers

    controllers = () if controller is None else parse_name_servers(controller)
    with shared.admin() if dry_run else shared.changing() as admin:
        handover = Handover(admin)
        plan = handover.plan(broker_name, to, controllers)
        row: output.Row = {**plan.row(), "dryRun": dry_run, "warnings": plan.warnings}
        row |= {"epoch": plan.info.master_epoch, "seconds": None}
        if dry_run:
            row["whyNot"] = plan.why_not
            _print_handover(shared, row)
            plan.check(force=force)
            return
        plan.check(force=force)
        if not plan.is_done:
            epoch, took_s = handover.carry_out(plan, wait_s=wait_s)
            row |= {"epoch": epoch, "seconds": round(took_s, 3)}
    _print_handover(shared, row)


def _print_handover(shared: arguments.Shared, row: output.Row) -> None:
    for warning in row["warnings"]:
        output.note(f"warning: {warning}")
    if shared.form is output.Form.TEXT:
        row = {key: _word(value) for key, value in row.items()}
    headings = {
        "broker": "BROKER",
        "fromMember": "MEMBER",
        "from": "OLD MASTER",
        "toMember": "MEMBER",
        "to": "NEW MASTER",
        "inSync": "IN SYNC",
        "behindBytes": "BEHIND B",
        "behindSeconds": "BEHIND S",
        "epoch": "EPOCH",
        "seconds": "SECONDS",
    }
    output.table(shared.form, [row], headings)


Broker = Annotated[
    str, typer.Argument(metavar="BROKER", help="Its name, or its address HOST:PORT.")
]


def _state(admin: "Admin", broker: str) -> dict[str, str]:
    address = admin.brokers.address(broker)
    try:
        return admin.brokers.state(address)
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
    with shared.changing() as admin:
        address = admin.brokers.address(broker)
        admin.brokers.delete_expired_log(address)
        if queues:
            admin.brokers.clean_expired_queues(address)
    row = {"broker": broker, "address": address, "log": True, "queues": queues}
    headings = {"broker": "BROKER", "address": "ADDRESS", "log": "LOG", "queues": "QUEUES"}
    output.table(shared.form, [row], headings)
