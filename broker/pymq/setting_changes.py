"""Which settings administrators may change while a component runs.

Source: RocketMQ UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG, UPDATE_CONTROLLER_CONFIG.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pymq.errors import ConfigurationError, refusal
from pymq.protocol.codes import ResponseCode
from pymq.settings import keys_of, live_keys, parse_properties, with_changes

_log = logging.getLogger(__name__)

#: Most bytes of the text of a request: that of all settings has a tenth of it.
TEXT_BYTES_MAX = 64 << 10


def read_changes(text: bytes | memoryview) -> dict[str, str]:
    """Return what a request wants to change: lines of ``key=value``.

    Raises:
        BrokerError: it is no such text, or a very long one.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise refusal(
            ResponseCode.INVALID_PARAMETER,
            f"properties of {len(text)} B, expected at most {TEXT_BYTES_MAX} (TEXT_BYTES_MAX)",
        )
    try:
        return parse_properties(str(text, "utf-8"), source="request")
    except (UnicodeDecodeError, ConfigurationError) as error:
        raise refusal(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error


def check_changes(
    keys: Iterable[str],
    *config_classes: type,
    component: str,
    is_allowed: bool,
    black_list: Collection[str],
) -> None:
    """Accept changes of settings.

    Args:
        keys: whose values are to change.
        config_classes: what the component has for its configuration.
        component: what it is called, for error messages.
        is_allowed: whether anything may be changed (``pymqAllowConfigUpdate``).
        black_list: keys that nobody may change: RocketMQ's, and those of ``configBlackList``.

    Raises:
        BrokerError: changes are not allowed, or not of one of these keys.
    """
    keys = sorted(keys)
    if not set(black_list).isdisjoint(keys):
        raise refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    if not is_allowed:
        raise refusal(
            ResponseCode.NO_PERMISSION,
            f"the configuration of this {component} is fixed while it runs "
            "(pymqAllowConfigUpdate=false)",
        )
    live, known = live_keys(*config_classes), keys_of(*config_classes)
    for key in keys:
        if key not in live:
            what = f"is fixed while the {component} runs" if key in known else "has no effect here"
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"{key} {what}; what can be changed: {', '.join(sorted(live))}",
            )


def kept_changes(
    kept: Mapping[str, str], configs: Sequence[Any], *, component: str, source: str
) -> tuple[dict[str, str], list[Any]]:
    """Return what still counts of changes of an earlier run, and configurations with it.

    Another version of the component may have accepted what this one does not. Such a change is
    dropped with a warning: it must not cost the others.

    Args:
        kept: key -> value.
        configs: the component's, as its configuration file says.
        component: what it is called, for log lines.
        source: the file, for log lines.
    """
    live = live_keys(*map(type, configs))
    for key in sorted(kept.keys() - live):
        _log.warning("%s, set while the %s ran, has no effect any more: dropped", key, component)
    changes = {key: kept[key] for key in sorted(kept.keys() & live)}
    try:
        return changes, [with_changes(one, changes, source=source) for one in configs]
    except ConfigurationError:
        found: dict[str, str] = {}
        changed = list(configs)
    for key, value in changes.items():
        try:
            changed = [with_changes(one, {key: value}, source=source) for one in changed]
        except ConfigurationError as error:
            _log.warning("a setting made while the %s ran is dropped: %s", component, error)
        else:
            found[key] = value
    return found, changed
