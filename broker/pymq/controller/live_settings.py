"""Settings that administrators change while the controller runs, until it ends.

RocketMQ writes them into a file. Here a controller is one of several, and none has a file of its
own that the others would not contradict: what shall last belongs into every configuration file.

Source: RocketMQ Configuration.
"""

import logging
from collections.abc import Mapping

from pymq.controller.config import ControllerConfig
from pymq.errors import ConfigurationError, refusal
from pymq.protocol.codes import ResponseCode
from pymq.setting_changes import check_changes
from pymq.settings import take_over, to_properties, with_changes

_log = logging.getLogger(__name__)

#: Keys that RocketMQ lets nobody change, whatever configBlackList says.
_BLACK_LIST = frozenset(("configBlackList", "configStorePath", "rocketmqHome"))


class LiveSettings:
    """The settings of one controller.

    Args:
        config: in use; its live settings change.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config

    def properties(self) -> dict[str, str]:
        """Return all settings by RocketMQ's keys, sorted."""
        return dict(sorted(to_properties(self._config).items()))

    def change(self, changes: Mapping[str, str]) -> None:
        """Change settings: all of them or, if one is refused, none.

        Raises:
            BrokerError: it is not allowed, a key cannot be changed, or a value is wrong.
        """
        check_changes(
            changes,
            ControllerConfig,
            component="controller",
            is_allowed=self._config.allow_config_update,
            black_list=_BLACK_LIST.union(self._config.config_black_list),
        )
        try:
            changed = with_changes(self._config, changes, source="request")
        except ConfigurationError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        take_over(self._config, changed)
        for key, value in sorted(changes.items()):
            _log.warning("%s=%s from now on, until the next start", key, value)
