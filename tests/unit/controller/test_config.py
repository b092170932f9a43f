"""A controller's configuration out of RocketMQ's properties file."""

import pytest

from pymq.controller.config import DEFAULT_PORT, ControllerConfig
from pymq.errors import ConfigurationError
from pymq.settings import (
    from_properties,
    keys_of,
    parse_properties,
    review_keys,
    to_properties,
)

#: distribution/conf/controller/cluster-3n-independent/controller-n1.conf, and some more keys.
TEXT = """
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878;n1-127.0.0.1:9868;n2-127.0.0.1:9858
controllerDLegerSelfId = n1
controllerStorePath = /home/admin/DledgerController
enableElectUncleanMaster = false
notifyBrokerRoleChanged = true
scanNotActiveBrokerInterval = 5000
controllerType = DLedger
"""


def test_a_file_of_rocketmq_is_understood() -> None:
    properties = parse_properties(TEXT)
    config = from_properties(ControllerConfig, properties, source="controller.conf")
    assert (config.group, config.self_id, config.port) == ("group1", "n1", 9868)
    assert config.address(config.port) == "127.0.0.1:9868"
    assert list(config.peer_addresses()) == ["n0", "n1", "n2"]
    ignored, unknown = review_keys(properties, keys_of(ControllerConfig))
    assert ignored == ["controllerStorePath", "controllerType", "scanNotActiveBrokerInterval"]
    assert unknown == []


def test_the_configuration_describes_itself() -> None:
    config = ControllerConfig(store="file:/x", listen_port=1, advertised_host="h", self_id="a")
    assert from_properties(ControllerConfig, to_properties(config), source="f") == config


def test_defaults() -> None:
    config = ControllerConfig()
    assert config.port == DEFAULT_PORT == 9878
    assert config.address(9878) == "127.0.0.1:9878"
    assert not config.unclean_elections and config.notify_brokers


@pytest.mark.parametrize(
    "urls",
    [
        "http://root:s3cret@e1:2379",
        "root:s3cret@e1:2379",
        "https://e1:2379,https://root:s3cret@e2:2379",
        "http://root:s3cret,x@e1",
        "http://root:s3//cret@e1",
    ],
)
def test_a_name_and_password_for_etcd_are_refused_and_not_shown(urls: str) -> None:
    with pytest.raises(ConfigurationError, match="pymqEtcdCertificateFile") as refused:
        properties = {"pymqControllerStore": f"etcd:{urls}"}
        from_properties(ControllerConfig, properties, source="controller.conf")
    assert "root" not in str(refused.value) and "cret" not in str(refused.value)
    assert ControllerConfig(store="file:/var/a@b").store == "file:/var/a@b"


def test_half_a_certificate_for_etcd_is_refused() -> None:
    for key in ("pymqEtcdCertificateFile", "pymqEtcdKeyFile"):
        with pytest.raises(ConfigurationError, match="expected both or none of them"):
            from_properties(ControllerConfig, {key: "/a.pem"}, source="controller.conf")
