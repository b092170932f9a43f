"""Commands that let a group consume again, and leave its other settings as they are."""

import json
import shlex
from dataclasses import replace

from pymq.protocol.bodies import GroupConfig

#: Settings that ``mqadmin updateSubGroup`` cannot be told.
_UNTOLD = {
    "group_sys_flag": "groupSysFlag",
    "consume_timeout_minute": "consumeTimeoutMinute",
    "subscriptions": "subscriptionDataSet",
}


def _made(config: GroupConfig) -> GroupConfig:
    """Return what ``pymq group create`` makes of the settings that it can be told."""
    return GroupConfig(
        group=config.group,
        retry_max_times=config.retry_max_times,
        consume_message_orderly=config.consume_message_orderly,
    )


def is_made_alike(first: GroupConfig, other: GroupConfig) -> bool:
    """Would the command for one broker change nothing at another one, but let it consume?"""
    return other.retry_max_times >= 0 and replace(other, consume_enable=True) == _made(first)


def created_again(group: str, config: GroupConfig, cluster: str) -> str:
    """Return the command for all brokers of a cluster, whose settings are alike.

    Args:
        group: its name, in the namespace that the command is for.
        config: of any of them.
        cluster: its name.
    """
    options = f"--retries {config.retry_max_times}"
    options += " --orderly" if config.consume_message_orderly else ""
    return (
        f"pymq group create {group} {options} --cluster {shlex.quote(cluster)}, which sets "
        "all its settings on all brokers there"
    )


def enabled_alone(group: str, config: GroupConfig, address: str) -> str:
    """Return the command for one broker, with the settings that it has.

    Args:
        group: its name, as brokers know it.
        config: as the broker has it.
        address: ``host:port`` of the broker.
    """
    flags = {
        "-s": True,
        "-m": config.consume_from_min_enable,
        "-d": config.consume_broadcast_enable,
        "-q": config.retry_queue_count,
        "-r": config.retry_max_times,
        "-i": config.broker_id,
        "-w": config.which_broker_when_consume_slowly,
        "-a": config.notify_consumer_ids_changed_enable,
    }
    words = ["mqadmin", "updateSubGroup", "-b", address, "-g", group]
    for option, value in flags.items():
        words += [option, str(value).lower() if isinstance(value, bool) else str(value)]
    default = GroupConfig(group=group)
    # mqadmin 4 does not know the rest, and its brokers have nothing of it.
    if config.consume_message_orderly:
        words += ["-o", "true"]
    if config.retry_policy != default.retry_policy:
        words += ["-p", json.dumps(config.retry_policy, separators=(",", ":"))]
    if config.attributes:
        words += ["--attributes", ",".join(f"+{k}={v}" for k, v in config.attributes.items())]
    changed = [
        name for field, name in _UNTOLD.items() if getattr(config, field) != getattr(default, field)
    ]
    note = f" (it resets {', '.join(changed)})" if changed else ""
    return shlex.join(words) + note
