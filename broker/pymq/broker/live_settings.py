"""Settings that administrators see and, where that is allowed, change while the broker runs.

A change takes effect at once: whoever needs a live setting asks the configuration for it. It
outlives a restart in a table of its own, and counts instead of what the configuration file says
then; RocketMQ writes it into that file, among all others.

Source: RocketMQ Configuration.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymq.broker.config import BrokerConfig
from pymq.broker.replication_config import ReplicationConfig
from pymq.clock import Clock
from pymq.errors import ConfigurationError, refusal
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion
from pymq.protocol.codes import ResponseCode
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject
from pymq.protocol.names import TRACE_TOPIC
from pymq.setting_changes import check_changes, kept_changes
from pymq.settings import take_over, to_properties, with_changes
from pymq.store import StoreConfig

_log = logging.getLogger(__name__)

#: Keys that RocketMQ lets nobody change, whatever configBlackList says.
_BLACK_LIST = frozenset(("configBlackList", "brokerConfigPath"))
_SOURCE = "request"
_ON_CLASSES = (BrokerConfig, ReplicationConfig, StoreConfig)


@dataclass(slots=True, kw_only=True)
class _SettingsFile(JsonObject):
    version: DataVersion = wire("dataVersion", default_factory=DataVersion)
    properties: dict[str, str] = wire("properties", default_factory=dict)


class LiveSettings:
    """The settings of one broker and its store.

    Args:
        config, store_config, replication: in use.
        address: ``host:port`` at which clients reach the broker.
        ha_address: ``host:port`` at which slaves do; None: there is no HA port.

    Attributes:
        on_change: called after each change with the keys that have other values; to be set by
            whoever needs to act.
        save_soon: called after each change; to be set by whoever keeps the file.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        replication: ReplicationConfig,
        clock: Clock,
        *,
        address: str,
        ha_address: str | None,
    ) -> None:
        self._configs = (config, replication, store_config)
        self._is_allowed = config.allow_config_update
        self._black_list = config.config_black_list
        self._clock = clock
        host, _, port = address.rpartition(":")
        #: What tools ask for, and what is so whatever anybody sets.
        self._fixed = {
            "brokerIP1": host,
            "listenPort": port,
            "msgTraceTopicName": TRACE_TOPIC,
            "traceTopicEnable": "false",
            "traceOn": "true",
            "useTLS": "false",
            # What exportMetrics takes for the number of processors.
            "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
        }
        if ha_address is not None:
            self._fixed["brokerIP2"], _, self._fixed["haListenPort"] = ha_address.rpartition(":")
        self._changes: dict[str, str] = {}
        self.version = DataVersion()
        self.on_change: Callable[[frozenset[str]], None] = lambda keys: None
        self.save_soon: Callable[[], None] = lambda: None

    def properties(self) -> dict[str, str]:
        """Return all settings by RocketMQ's keys, sorted."""
        found = {key: value for one in self._configs for key, value in to_properties(one).items()}
        return dict(sorted((found | self._fixed).items()))

    def change(self, changes: Mapping[str, str]) -> None:
        """Change settings: all of them or, if one is refused, none.

        Raises:
            BrokerError: it is not allowed, a key cannot be changed, or a value is wrong.
        """
        check_changes(
            changes,
            *_ON_CLASSES,
            component="broker",
            is_allowed=self._is_allowed,
            black_list=_BLACK_LIST.union(self._black_list),
        )
        try:
            changed = [with_changes(one, changes, source=_SOURCE) for one in self._configs]
        except ConfigurationError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        before = self.properties()
        self._take_over(changed)
        after = self.properties()
        self._changes |= {key: after[key] for key in changes}
        self.version = self.version.next(self._clock.wall_ms())
        self.save_soon()
        different = frozenset(key for key in changes if before[key] != after[key])
        for key in sorted(different):
            _log.info("%s: %s instead of %s from now on", key, after[key], before[key])
        if different:
            self.on_change(different)

    def _take_over(self, changed: Iterable[Any]) -> None:
        for one, other in zip(self._configs, changed, strict=True):
            take_over(one, other)

    # --- file

    def to_text(self) -> str:
        """Return the text of ``liveSettings.json``."""
        file = _SettingsFile(version=self.version, properties=self._changes)
        return fastjson.dump_pretty(file.to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``liveSettings.json``, instead of what the file says."""
        file = _SettingsFile.from_json(value)
        changes, changed = kept_changes(
            file.properties, self._configs, component="broker", source="liveSettings.json"
        )
        before = self.properties()
        self._take_over(changed)
        self._changes, self.version = changes, file.version
        for key, one in sorted(self.properties().items()):
            if before[key] != one:
                _log.warning(
                    "%s=%s was set while the broker ran and counts instead of %s, which its "
                    "configuration says; to undo that, set it again, or delete "
                    "config/liveSettings.json while the broker is stopped",
                    key,
                    one,
                    before[key],
                )
