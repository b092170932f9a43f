"""Which settings administrators may change while a component runs.

Source: RocketMQ UPDATE_BROKER_CONFIG, UPDATE_NAMESRV_CONFIG, UPDATE_CONTROLLER_CONFIG.
"""

from collections.abc import Collection, Iterable

from pymq.errors import ConfigurationError, refusal
from pymq.protocol.codes import ResponseCode
from pymq.settings import keys_of, live_keys, parse_properties

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
