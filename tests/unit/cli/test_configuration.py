"""Files that real name servers and brokers start with, and what ours make of them."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pymq.broker.config import BrokerConfig
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.cli import configuration
from pymq.errors import ConfigurationError
from pymq.settings import with_changes
from pymq.store import FlushMode, StoreConfig

FILES = Path(__file__).parent / "files"
HOME = Path("/home/somebody")

SECRET = "do-not-show-this-to-anybody"


def broker(
    file: Path | None = None, *, name_servers: str | None = None, **environment: str
) -> tuple[BrokerConfig, ReplicationConfig, StoreConfig]:
    return configuration.broker_configs(
        file, name_servers=name_servers, environment=environment, home=HOME
    )


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "broker.conf"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


BROKER_FILES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "broker-4.5.1.properties",
        {
            "name": "broker-b",
            "cluster": "rocketmq-cluster",
            "listen_port": 10921,
            "name_servers": ("127.0.0.1:9876", "127.0.0.1:9877"),
            "default_topic_queue_count": 4,
            "bind_address": "127.0.0.1",
        },
        {
            "root_path": Path("/var/rocketmq/store"),
            "segment_bytes": 134217728,
            "queue_file_bytes": 6000000,
            "message_bytes_max": 65536,
            "flush_mode": FlushMode.ASYNC,
        },
    ),
    (
        "broker-4.9.7.properties",
        {
            "name": "broker-a",
            "advertised_address": "192.168.7.20",
            "name_servers": ("namesrv-0.mq:9876", "namesrv-1.mq:9876"),
            "auto_create_topic": False,
            "auto_create_group": False,
            "permission": 6,
        },
        {
            "segment_bytes": 1 << 30,
            "queue_file_bytes": 5000000,
            "message_bytes_max": 8 << 20,
            "flush_mode": FlushMode.SYNC,
            "log_paths": (Path("/home/rocketmq/store/commitlog"),),
            "delay_levels_ms": (
                *(1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000),
                *(3_600_000, 7_200_000, 86_400_000),
            ),
        },
    ),
    (
        "broker-5.3.3.properties",
        {
            "bind_address": "0.0.0.0",
            "advertised_address": "10.20.0.21",
            "listen_port": 10911,
            "default_topic_queue_count": 8,
        },
        {
            "segment_bytes": 256 << 20,
            "flush_interval_ms": 200,
            "flush_mode": FlushMode.ASYNC,
            "log_paths": (Path("/data/rocketmq/store/commitlog"),),
        },
    ),
]


@pytest.mark.parametrize(("name", "broker_values", "store_values"), BROKER_FILES)
def test_real_broker_files(
    name: str,
    broker_values: dict[str, Any],
    store_values: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="pymq"):
        config, _, store = broker(FILES / name)
    assert {key: getattr(config, key) for key in broker_values} == broker_values
    assert {key: getattr(store, key) for key in store_values} == store_values
    assert not [record for record in caplog.records if "unknown key" in record.getMessage()]
    notes = [record for record in caplog.records if "does not use" in record.getMessage()]
    assert [note.levelno for note in notes] == [logging.DEBUG]
    unused = ("sendMessageThreadPoolNums", "useReentrantLockWhenPutMessage", "enableCompaction")
    assert any(key in notes[0].getMessage() for key in unused)
    assert "do-not-log-me" not in caplog.text


@pytest.mark.parametrize("name", [name for name, _, _ in BROKER_FILES])
def test_printed_broker_configuration_reads_back(name: str, tmp_path: Path) -> None:
    configs = broker(FILES / name)
    file = written(tmp_path, configuration.effective_text(*configs))
    assert broker(file) == configs


def test_printed_defaults_read_back(tmp_path: Path) -> None:
    configs = broker(NAMESRV_ADDR="a:1;b:2")
    assert broker(written(tmp_path, configuration.effective_text(*configs))) == configs


def test_keys_of_the_store_file_sizes_are_written_in_the_new_spelling() -> None:
    text = configuration.effective_text(*broker(FILES / "broker-4.5.1.properties"))
    assert "mappedFileSizeCommitLog=134217728\n" in text
    assert "mapedFileSize" not in text
    assert "flushDiskType=ASYNC_FLUSH\n" in text


def test_a_secret_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = f"pymqHaSecret={SECRET}\npymqHaSecrets={SECRET}\n"
    configs = broker(written(tmp_path, text))
    shown = configuration.effective_text(*configs) + repr(configs) + caplog.text
    assert "pymqHaSecret=******\n" in shown
    assert "did you mean pymqHaSecret?" in shown
    assert SECRET not in shown
    assert configs[1].secret == SECRET
    with pytest.raises(ConfigurationError, match="a secret of 6 B"):  # what is printed is no secret
        broker(written(tmp_path, configuration.effective_text(*configs)))
    for wrong in (f"pymqHaSecret={SECRET}\npymqHaSecretFile=/a", f"pymqHaSecret={SECRET[:10]}"):
        with pytest.raises(ConfigurationError) as refused:
            broker(written(tmp_path, wrong))
        assert SECRET[:10] not in str(refused.value)


def test_name_server_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configuration.name_server_config(FILES / "namesrv-4.9.7.properties", home=HOME)
    assert (config.port, config.order_message_enable) == (9877, True)
    assert config.kv_config_path == Path("/opt/rocketmq/namesrv/kvConfig.json")
    assert not caplog.records
    file = written(tmp_path, configuration.effective_text(config))
    assert configuration.name_server_config(file, home=HOME) == config


def test_defaults() -> None:
    name_server = configuration.name_server_config(None, home=HOME)
    assert (name_server.host, name_server.port) == ("127.0.0.1", 9876)
    assert name_server.kv_config_path == HOME / "namesrv/kvConfig.json"
    config, _, store = broker()
    assert (config.bind_address, config.listen_port) == ("127.0.0.1", 10911)
    assert config.name_servers == ()
    assert store.root_path == HOME / "store"
    assert store.flush_mode is FlushMode.SYNC
    assert store.segment_bytes == 1 << 30


def test_who_wins_over_name_servers(tmp_path: Path) -> None:
    assert broker(NAMESRV_ADDR="a:1;b:2")[0].name_servers == ("a:1", "b:2")
    file = written(tmp_path, "listenPort=1\n")
    assert broker(file, NAMESRV_ADDR="a:1;b:2")[0].name_servers == ("a:1", "b:2")
    file = written(tmp_path, "namesrvAddr=file:1\n")
    assert broker(file, NAMESRV_ADDR="a:1")[0].name_servers == ("file:1",)
    assert broker(file, name_servers="c:1", NAMESRV_ADDR="a:1")[0].name_servers == ("c:1",)


def test_a_file_without_a_flush_type_is_the_safer_one(tmp_path: Path) -> None:
    assert broker(written(tmp_path, "listenPort=1\n"))[2].flush_mode is FlushMode.SYNC


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("listenport=1", "listenport", "listenPort"),
        ("borkerName=x", "borkerName", "brokerName"),
        ("zzzzqqqq=1", "zzzzqqqq", None),
    ],
)
def test_unknown_keys(
    text: str, key: str, nearest: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker(written(tmp_path, text))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"unknown key {key} " in record.getMessage()
    assert (f"did you mean {nearest}?" in record.getMessage()) is (nearest is not None)


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled", "authorizationEnabled"])
def test_a_broker_that_is_to_be_guarded_does_not_start(key: str, tmp_path: Path) -> None:
    """Nobody is to find out from a warning that everybody may do everything."""
    with pytest.raises(ConfigurationError, match=f"{key}=TRUE: there is no access control yet"):
        broker(written(tmp_path, f"{key} = TRUE\n"))
    broker(written(tmp_path, f"{key} = false\n"))


@pytest.mark.parametrize("text", ["storeType=rocksdb", "useTLS=true"])
def test_a_promise_that_is_not_kept_is_a_warning(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker(written(tmp_path, text))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert text.partition("=")[0] in caplog.text


def test_a_controller_in_a_name_server_is_a_promise_that_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("enableControllerInNamesrv=false\n", "enableControllerInNamesrv=true\n"):
        assert not caplog.records
        configuration.name_server_config(written(tmp_path, text), home=HOME)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "enableControllerInNamesrv=true: no controller runs" in record.getMessage()
    assert "pymq controller" in record.getMessage()


def test_tls_is_a_promise_that_no_server_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("false", "true"):
        assert not caplog.records
        file = written(tmp_path, f"useTLS={value}\n")
        broker(file)
        configuration.name_server_config(file, home=HOME)
        configuration.controller_config(file, store=None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    for record in caplog.records:
        assert f"{file}: useTLS=true: there is no TLS" in record.getMessage()


def test_a_host_name_as_broker_ip_is_resolved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, _, _ = broker(written(tmp_path, "brokerIP1=localhost\n"))
    assert config.advertised_address in ("127.0.0.1", "::1")
    assert "localhost is a host name" in caplog.text


def test_a_master_has_id_0_as_in_rocketmq(tmp_path: Path) -> None:
    assert broker(written(tmp_path, "brokerId=3\n"))[0].broker_id == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listenPort=abc", "listenPort='abc'"),
        ("listenPort=70000", "70000"),
        ("flushDiskType=OFTEN", "SYNC_FLUSH or ASYNC_FLUSH"),
        ("brokerRole=MASTER", "ASYNC_MASTER"),
        ("haListenPort=70000", "haListenPort"),
        ("haTransferBatchSize=0", "haTransferBatchSize"),
        ("haMasterAddress=nowhere", "nowhere"),
        ("pymqHaNetworks=10.0.0.0/40", "pymqHaNetworks"),
        ("pymqHaSecret=", "pymqHaSecret: a secret of 0 B, expected 16 or more"),
        ("pymqHaSecret=  ", "pymqHaSecret: a secret of 0 B, expected 16 or more"),
        ("pymqHaSecret=\npymqHaSecretFile=/a", "expected one of them"),
        ("pymqHaSecretFile=", "pymqHaSecretFile='': expected a path"),
        ("pymqHaTlsTrustCertPath=", "pymqHaTlsTrustCertPath='': expected a path"),
        ("pymqHaSecret=too short", "pymqHaSecret: a secret of 9 B, expected 16 or more"),
        (f"pymqHaSecret={SECRET}\npymqHaSecretFile=/a", "expected one of them"),
        ("pymqHaTls=true", "pymqHaTls=true without a secret"),
        (f"pymqHaTls=true\npymqHaSecret={SECRET}", "pymqHaTlsCertPath and pymqHaTlsKeyPath"),
        (
            f"pymqHaTls=true\npymqHaSecret={SECRET}\npymqHaTlsKeyPath=/a",
            "expected both or none of them",
        ),
        (
            f"brokerRole=SLAVE\nbrokerId=1\npymqHaTls=true\npymqHaSecret={SECRET}",
            "pymqHaTlsTrustCertPath",
        ),
        ("pymqHaConnectionsMax=1", "pymqHaConnectionsMax"),
        ("pymqHaHandshakeTimeout=0", "handshake_ms=0"),
        ("storePathCommitLog=/a\nreadOnlyCommitLogStorePaths=/a", "no directory"),
        ("storePathCommitLog=/a,/a", "each once"),
        ("storePathRootDir=", "storePathRootDir"),
        ("namesrvAddr=nowhere", "namesrvAddr: address 'nowhere'"),
        ("brokerIP1=0.0.0.0", "brokerIP1"),
        ("brokerIP1=nowhere.invalid", "brokerIP1"),
        ("messageDelayLevel=1s soon", "'soon'"),
        ("autoCreateTopicEnable=yes", "true or false"),
        ("mappedFileSizeCommitLog=-1", "segment_bytes"),
        ("brokerName=\\u12", "line 1"),
        (b"\x7fELF\0\0", "binary data"),
    ],
)
def test_bad_values_name_file_and_key(text: str | bytes, said: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        broker(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    ["reviveQueueNum", "pymqConnectionCountMax", "flushConsumerOffsetInterval"]
    + ["registerNameServerPeriod", "registerBrokerTimeoutMills", "transactionCheckInterval"]
    + ["flushDelayOffsetInterval", "timerFlushIntervalMs", "channelExpiredTimeout"]
    + ["syncFlushTimeout"],
)
def test_numbers_with_which_a_broker_cannot_work(key: str, tmp_path: Path) -> None:
    for value in (0, -5):
        with pytest.raises(ConfigurationError, match=rf"={value} \({key}\): expected 1 or more"):
            broker(written(tmp_path, f"{key}={value}\n"))
        with pytest.raises(ConfigurationError, match=rf"\({key}\): expected 1 or more"):
            with_changes(BrokerConfig(), {key: str(value)}, source="an administrator")
    broker(written(tmp_path, f"{key}=1\n"))


def test_several_directories_of_the_log(tmp_path: Path) -> None:
    text = "storePathCommitLog=/disk1/log, /disk2/log\nreadOnlyCommitLogStorePaths=/old\n"
    for _ in range(2):
        config, _, store = broker(written(tmp_path, text))
        assert store.log_paths == (Path("/disk1/log"), Path("/disk2/log"))
        assert store.read_only_log_paths == (Path("/old"),)
        text = configuration.effective_text(config, store)
        assert "storePathCommitLog=/disk1/log,/disk2/log\n" in text


@pytest.mark.parametrize("written_as", ["{root}/", " {root} ", "{root}/../store", "{link}", None])
def test_the_store_of_the_file_has_the_logs_of_the_file(
    written_as: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    root, link = tmp_path / "store", tmp_path / "link"
    (root / "commitlog").mkdir(parents=True)
    link.symlink_to(root)
    text = f"storePathCommitLog={root}/commitlog,/other\nreadOnlyCommitLogStorePaths=/old\n"
    if written_as is not None:
        text += f"storePathRootDir={written_as.format(root=root, link=link)}\n"
    for named in (root, link):
        config = configuration.store_config(written(tmp_path, text), root=named)
        assert config.log_paths == (root / "commitlog", Path("/other"))
        assert config.read_only_log_paths == (Path("/old"),)


def test_a_copy_of_a_store_has_its_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "copy"
    (root / "commitlog").mkdir(parents=True)
    file = written(tmp_path, "storePathRootDir=/d/store\nstorePathCommitLog=/d/log,/other\n")
    assert configuration.store_config(file, root=root).log_paths == (root / "commitlog",)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{root} is a copy of /d/store: storePathCommitLog=/d/log,/other" in record.getMessage()


def test_bad_addresses_name_where_they_are_from() -> None:
    with pytest.raises(ConfigurationError, match="^-n: address 'x'"):
        broker(name_servers="x")
    with pytest.raises(ConfigurationError, match="^NAMESRV_ADDR: address 'y'"):
        broker(NAMESRV_ADDR="y")


def test_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            configuration.read_properties(path)


def test_encodings(tmp_path: Path) -> None:
    utf8 = written(tmp_path, "# 代理\nbrokerName=b\n".encode())
    assert configuration.read_properties(utf8) == {"brokerName": "b"}
    marked = written(tmp_path, b"\xef\xbb\xbfbrokerName=b\n")
    assert configuration.read_properties(marked) == {"brokerName": "b"}
    gbk = written(tmp_path, "# 代理\nbrokerName=b\n".encode("gbk"))
    assert configuration.read_properties(gbk) == {"brokerName": "b"}


CONTROLLED = "enableControllerMode=true\ncontrollerAddr=h:1\n"
ACTING = "enableSlaveActingMaster=true\n"


@pytest.mark.parametrize(
    ("interval", "controllers_ms", "name_servers_ms"),
    [(300, 2_000, 10_000), (500, 2_000, 10_000), (1_000, 4_000, 10_000), (3_000, 12_000, 12_000)],
)
@pytest.mark.parametrize("mode", ["", CONTROLLED, ACTING])
def test_time_outs_that_are_not_set_have_room_for_heartbeats(
    mode: str, interval: int, controllers_ms: int, name_servers_ms: int, tmp_path: Path
) -> None:
    file = written(tmp_path, f"{mode}brokerHeartbeatInterval={interval}\n")
    _, replication, _ = broker(file)
    assert replication.controller_timeout_ms == controllers_ms
    assert replication.not_active_ms == name_servers_ms


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        (CONTROLLED, "controllerHeartBeatTimeoutMills"),
        (ACTING, "brokerNotActiveTimeoutMillis"),
    ],
)
def test_a_time_out_without_room_for_two_heartbeats_is_refused(
    mode: str, key: str, tmp_path: Path
) -> None:
    """It would end again and again, and the master with it, and nobody could see why."""
    times = f"brokerHeartbeatInterval=3000\n{key}="
    broker(written(tmp_path, f"{mode}{times}6000\n"))
    broker(written(tmp_path, f"{times}5999\n"))  # it does not count
    with pytest.raises(ConfigurationError, match=f"{key}=5999, brokerHeartbeatInterval=3000.*6000"):
        broker(written(tmp_path, f"{mode}{times}5999\n"))


def test_a_slave_and_its_master(tmp_path: Path) -> None:
    slave = "brokerRole=SLAVE\nbrokerId=2\nhaMasterAddress=10.1.1.1:10912\nhaListenPort=10932\n"
    config, replication, _ = broker(written(tmp_path, slave))
    assert config.broker_id == 2
    assert (replication.role, replication.master_address) == (Role.SLAVE, "10.1.1.1:10912")
    assert replication.listen_port == 10932
    config, replication, _ = broker(written(tmp_path, "brokerId=3\nbrokerIP2=10.1.1.2\n"))
    assert config.broker_id == 0, "a master, whatever the file says"
    assert replication.advertised_address == "10.1.1.2"
    assert (replication.role, replication.bind_address) == (Role.ASYNC_MASTER, "127.0.0.1")
