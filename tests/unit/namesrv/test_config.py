"""A name server's configuration out of RocketMQ's properties file."""

from pathlib import Path

import pytest

from pymq.errors import ConfigurationError
from pymq.namesrv.config import NamesrvConfig
from pymq.settings import (
    from_properties,
    keys_of,
    parse_properties,
    review_keys,
    to_properties,
)


def test_a_file_of_rocketmq_is_understood() -> None:
    properties = parse_properties(
        "rocketmqHome=/opt/rocketmq\nkvConfigPath=/data/kvConfig.json\nlistenPort=19876\n"
        "bindAddress=0.0.0.0\norderMessageEnable=true\nserverWorkerThreads=8\nclusterTest=false\n"
        "productEnvName=center\nscanNotActiveBrokerInterval=1000\nlistenProt=1\n"
    )
    config = from_properties(NamesrvConfig, properties, source="namesrv.conf")
    assert config == NamesrvConfig(
        kv_config_path=Path("/data/kvConfig.json"),
        port=19876,
        host="0.0.0.0",
        order_message_enable=True,
        scan_interval_ms=1000,
    )
    ignored, unknown = review_keys(properties, keys_of(NamesrvConfig))
    assert ignored == ["clusterTest", "productEnvName", "rocketmqHome", "serverWorkerThreads"]
    assert unknown == [("listenProt", "listenPort")]


def test_the_configuration_describes_itself() -> None:
    config = NamesrvConfig(port=0, kv_config_path=Path("/x"), broker_expiry_s=1.5)
    assert from_properties(NamesrvConfig, to_properties(config), source="f") == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("scanNotActiveBrokerInterval", "0"),
        ("serverChannelMaxIdleTimeSeconds", "-3"),
        ("pymqBrokerExpirySeconds", "0"),
    ],
)
def test_impossible_values_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^f: {key}={value}"):
        from_properties(NamesrvConfig, {key: value}, source="f")
