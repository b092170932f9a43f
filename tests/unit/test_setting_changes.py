"""Which settings administrators may change: the same rules for every server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from pymq.broker.config import BrokerConfig
from pymq.broker.live_settings import LiveSettings as BrokerSettings
from pymq.broker.replication_config import ReplicationConfig
from pymq.clock import Clock
from pymq.controller.config import ControllerConfig
from pymq.controller.live_settings import LiveSettings as ControllerSettings
from pymq.errors import BrokerError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.live_settings import LiveSettings as NameServerSettings
from pymq.protocol.codes import ResponseCode
from pymq.settings import from_properties, parse_properties
from pymq.store import StoreConfig

BLACK = "Can not update config in black list."


class Settings(Protocol):
    """What the settings of every server can do."""

    def properties(self) -> dict[str, str]: ...

    def change(self, changes: Mapping[str, str]) -> None: ...


def of_broker(text: str) -> Settings:
    properties = parse_properties(text)
    return BrokerSettings(
        from_properties(BrokerConfig, properties, source="f"),
        StoreConfig(root_path=Path("/store")),
        ReplicationConfig(),
        Clock(),
        address="127.0.0.1:1",
        ha_address=None,
    )


def of_name_server(text: str) -> Settings:
    return NameServerSettings(from_properties(NamesrvConfig, parse_properties(text), source="f"))


def of_controller(text: str) -> Settings:
    properties = parse_properties(text)
    return ControllerSettings(from_properties(ControllerConfig, properties, source="f"))


#: Settings of a server, a key that can be changed, one that RocketMQ lets nobody change, and the
#: list as RocketMQ shows it.
SERVERS = [
    (of_broker, "fileReservedTime", "brokerConfigPath", "configBlackList;brokerConfigPath"),
    (
        of_name_server,
        "enableTopicList",
        "kvConfigPath",
        "configBlackList;configStorePath;kvConfigPath",
    ),
    (
        of_controller,
        "notifyBrokerRoleChanged",
        "configStorePath",
        "configBlackList;configStorePath",
    ),
]


@pytest.mark.parametrize(("made", "live", "never", "default"), SERVERS)
def test_the_black_list_of_the_file_counts_beside_the_usual_one(
    made: Callable[[str], Settings], live: str, never: str, default: str
) -> None:
    settings = made(f"configBlackList={live}; unheardOf\npymqAllowConfigUpdate=true\n")
    before = settings.properties()
    for key in (live, "unheardOf", never, "configBlackList"):
        with pytest.raises(BrokerError, match=BLACK) as refused:
            settings.change({key: "1"})
        assert refused.value.code == ResponseCode.NO_PERMISSION
    assert settings.properties() == before
    assert before["configBlackList"] == f"{live};unheardOf"


@pytest.mark.parametrize(("made", "live", "never", "default"), SERVERS)
def test_what_the_file_does_not_forbid_can_be_changed(
    made: Callable[[str], Settings], live: str, never: str, default: str
) -> None:
    settings = made("pymqAllowConfigUpdate=true\n")
    assert settings.properties()["configBlackList"] == default
    with pytest.raises(BrokerError, match=BLACK):
        settings.change({never: "1"})
    settings.change({live: settings.properties()[live]})
