"""Settings that administrators change while the name server runs.

A change is on the disk before it takes effect. It outlives a restart in ``liveSettings.json``,
beside the key-value configuration, and counts instead of what the configuration file says then;
RocketMQ writes it into that file, among all others. The broker does the same with its own.

::

    {"properties":{"orderMessageEnable":"true"}}

Source: RocketMQ Configuration.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import BrokerSystemError, ConfigurationError, RemoteProtocolError, refusal
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.files import NotSynced, replace_file
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject
from pymq.setting_changes import check_changes, kept_changes
from pymq.settings import take_over, to_properties, with_changes

_log = logging.getLogger(__name__)

#: Keys that RocketMQ lets nobody change, whatever configBlackList says.
_BLACK_LIST = frozenset(("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"))
FILE_NAME = "liveSettings.json"


@dataclass(slots=True, kw_only=True)
class _SettingsFile(JsonObject):
    properties: dict[str, str] = wire("properties", default_factory=dict)


class LiveSettings:
    """The settings of one name server.

    Args:
        config: in use; its live settings change.

    Raises:
        ConfigurationError: the file exists but cannot be read.
    """

    def __init__(self, config: NamesrvConfig) -> None:
        self._config = config
        kept = config.kv_config_path
        self._path = None if kept is None else kept.with_name(FILE_NAME)
        self._changes: dict[str, str] = {}
        if self._path is not None:
            self._restore(self._path)

    def properties(self) -> dict[str, str]:
        """Return all settings by RocketMQ's keys, sorted."""
        return dict(sorted(to_properties(self._config).items()))

    def change(self, changes: Mapping[str, str]) -> None:
        """Change settings: all of them or, if one is refused, none.

        Raises:
            BrokerError: it is not allowed, a key cannot be changed, a value is wrong, or the file
                cannot be written. Or it is unknown whether the disk keeps it: they have changed.
        """
        check_changes(
            changes,
            NamesrvConfig,
            component="name server",
            is_allowed=self._config.allow_config_update,
            black_list=_BLACK_LIST.union(self._config.config_black_list),
        )
        try:
            changed = with_changes(self._config, changes, source="request")
        except ConfigurationError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        kept = {**self._changes, **changes}
        if changes and self._path is not None:
            text = fastjson.dump_pretty(_SettingsFile(properties=kept).to_json())
            try:
                replace_file(self._path, text)
            except OSError as error:
                if isinstance(error, NotSynced):
                    take_over(self._config, changed)
                    self._changes = kept
                text = f"cannot write the settings {self._path}: {error}"
                raise BrokerSystemError(text, code=1, remark=text) from error
        take_over(self._config, changed)
        self._changes = kept
        lasting = "" if self._path else ", until the next start: there is no kvConfigPath"
        for key, value in sorted(changes.items()):
            _log.info("%s=%s from now on%s", key, value, lasting)

    def _restore(self, path: Path) -> None:
        try:
            kept = _SettingsFile.decode(path.read_bytes()).properties
        except FileNotFoundError:
            return
        except (OSError, RemoteProtocolError) as error:
            raise ConfigurationError(
                f"cannot read the settings {path}: {error}; repair them, or move them away to go "
                "by the configuration alone"
            ) from error
        before = self.properties()
        self._changes, (changed,) = kept_changes(
            kept, [self._config], component="name server", source=str(path)
        )
        take_over(self._config, changed)
        for key, value in self.properties().items():
            if before[key] != value:
                _log.warning(
                    "%s=%s was set while the name server ran and counts instead of %s, which its "
                    "configuration says; to undo that, set it again, or delete %s while it is "
                    "stopped",
                    key,
                    value,
                    before[key],
                    path,
                )
