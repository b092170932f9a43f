"""RocketMQ's properties files and environment -> configurations of name server and broker.

In ascending order of precedence: the default, ``NAMESRV_ADDR`` of the environment, the file, the
argument. Two defaults differ from RocketMQ's, both for safety:

* ``flushDiskType`` is ``SYNC_FLUSH`` (there: ``ASYNC_FLUSH``), so that acknowledged messages
  survive a power loss;
* ``bindAddress`` is ``127.0.0.1`` (there: ``0.0.0.0``), so that nothing is reachable from the
  network by default.
"""

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pymq.cli.home import home_directory, required
from pymq.errors import ConfigurationError
from pymq.namesrv.config import NamesrvConfig
from pymq.protocol.addresses import split_address
from pymq.settings import (
    format_properties,
    from_properties,
    keys_of,
    parse_properties,
    review_keys,
    to_properties,
)

if TYPE_CHECKING:
    from pymq.broker.config import BrokerConfig
    from pymq.broker.replication_config import ReplicationConfig
    from pymq.controller.config import ControllerConfig
    from pymq.store import StoreConfig

_log = logging.getLogger(__name__)
_C = TypeVar("_C")

NAME_SERVER_VARIABLE = "NAMESRV_ADDR"

_NO_FILE = "defaults"
_LOG_DIRECTORIES = ("storePathCommitLog", "readOnlyCommitLogStorePaths")


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"


#: A key that may promise something that is not done: the test for that, and what is done instead.
_Promise = tuple[Callable[[str], bool], str]

#: Of every server.
_UNKEPT_BY_ALL: dict[str, _Promise] = {
    "useTLS": (
        _is_true,
        "there is no TLS between clients and servers: all of it is plain text",
    ),
}

#: Of a broker that whoever has set them relies on: it does not start.
_GUARDS = ("aclEnable", "authenticationEnabled", "authorizationEnabled")

#: Of a broker.
_UNKEPT: dict[str, _Promise] = {
    **_UNKEPT_BY_ALL,
    "enableDLegerCommitLog": (_is_true, "there is no DLedger: this broker keeps one copy"),
    "duplicationEnable": (_is_true, "this broker keeps one copy"),
    "storeType": (
        lambda kind: kind.strip() not in ("", "default"),
        "consume queues are files, as with storeType=default",
    ),
}

#: Of a name server.
_UNKEPT_BY_NAME_SERVERS: dict[str, _Promise] = {
    **_UNKEPT_BY_ALL,
    "enableControllerInNamesrv": (
        _is_true,
        "no controller runs in the name server: start one with `pymq controller`",
    ),
}


def _filled(kind: type[_C], properties: Mapping[str, str], source: str) -> _C:
    """Return the configuration of a kind; its errors name the keys that a file has."""
    try:
        return from_properties(kind, properties, source=source)
    except ConfigurationError as error:
        text = str(error)
        for one in fields(kind):  # type: ignore[arg-type]
            names = (one.metadata.get("key"), *one.metadata.get("aliases", ()))
            key = next((name for name in names if name in properties), None)
            beginning = f"{source}: {one.name}="
            if key is not None and text.startswith(beginning) and one.name != key:
                rest = text.removeprefix(f"{source}: ")
                raise ConfigurationError(f"{source}: {key}: {rest}") from error
        raise


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a properties file.

    A file that is not UTF-8 is read as Latin-1, as Java reads every file.

    Raises:
        ConfigurationError: it cannot be read, or is not a properties file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"configuration file {path}: {error.strerror or error}; give -c a file that can be read"
        ) from error
    if b"\0" in raw:
        raise ConfigurationError(
            f"configuration file {path}: binary data, expected lines of key=value"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return parse_properties(text, source=str(path))


def name_server_config(file: Path | None, *, home: Path | None) -> NamesrvConfig:
    """Return how ``pymq namesrv`` behaves.

    Args:
        file: RocketMQ's ``namesrv.conf``, if there is one.
        home: the user's directory, where RocketMQ keeps the key-value configuration.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is wrong or missing.
    """
    properties = {} if file is None else read_properties(file)
    source = _source(file)
    _review(properties, keys_of(NamesrvConfig), file)
    _warn_of_unkept(properties, source, _UNKEPT_BY_NAME_SERVERS)
    if "kvConfigPath" not in properties:
        base = required(home, "give a file (-c) that says kvConfigPath")
        properties["kvConfigPath"] = str(base / "namesrv" / "kvConfig.json")
    return _filled(NamesrvConfig, properties, source)


def broker_configs(
    file: Path | None,
    *,
    name_servers: str | None,
    environment: Mapping[str, str],
    home: Path | None,
) -> "tuple[BrokerConfig, ReplicationConfig, StoreConfig]":
    """Return how ``pymq broker``, its replication and its store behave.

    Args:
        file: RocketMQ's ``broker.conf``, if there is one.
        name_servers: the argument ``-n``.
        environment: of the process.
        home: the user's directory, below which RocketMQ keeps its store.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is wrong or missing.
    """
    from pymq.broker.config import BrokerConfig  # here, because a name server works without numpy
    from pymq.broker.replication_config import ReplicationConfig
    from pymq.store import StoreConfig

    properties = {} if file is None else read_properties(file)
    source = _source(file)
    _review(properties, keys_of(BrokerConfig, ReplicationConfig, StoreConfig), file)
    _refuse_guards(properties, source)
    _warn_of_unkept(properties, source, _UNKEPT)
    if "storePathRootDir" not in properties:
        properties["storePathRootDir"] = str(_default_store(home))
    settings = {
        "flushDiskType": "SYNC_FLUSH",
        "brokerName": socket.gethostname(),
        "namesrvAddr": environment.get(NAME_SERVER_VARIABLE, ""),
        **properties,
    }
    if name_servers is not None:
        settings["namesrvAddr"] = name_servers
    store = _filled(StoreConfig, settings, source)
    replication = _filled(ReplicationConfig, settings, source)
    if replication.role.is_master:
        settings["brokerId"] = "0"  # as in RocketMQ, whatever the file says
    for key in ("brokerIP1", "brokerIP2"):
        settings = _with_address(settings, key, source)
    broker = _filled(BrokerConfig, settings, source)
    if name_servers is not None:
        _check_addresses(broker.name_servers, "-n")
    elif "namesrvAddr" in properties:
        _check_addresses(broker.name_servers, f"{source}: namesrvAddr")
    else:
        _check_addresses(broker.name_servers, NAME_SERVER_VARIABLE)
    return broker, replication, replace(store, commit_log_paths=store.log_paths)


def controller_config(file: Path | None, *, store: str | None) -> "ControllerConfig":
    """Return how ``pymq controller`` behaves.

    Args:
        file: RocketMQ's ``controller.conf``, if there is one.
        store: the argument ``--store``.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is wrong.
    """
    from pymq.controller.config import ControllerConfig  # here, to keep --help quick

    properties = {} if file is None else read_properties(file)
    source = _source(file)
    _review(properties, keys_of(ControllerConfig), file)
    _warn_of_unkept(properties, source, _UNKEPT_BY_ALL)
    if store is not None:
        properties["pymqControllerStore"] = store
    config = _filled(ControllerConfig, properties, source)
    return replace(config, listen_port=config.port)


def store_config(file: Path | None, *, root: Path) -> "StoreConfig":
    """Return the settings of a store that is inspected without its broker.

    Args:
        file: RocketMQ's ``broker.conf``, if there is one.
        root: the store directory. If the file names another one, this is a copy, and its own
            commit log is used, if it has one, with a warning about what the file says.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is wrong.
    """
    from pymq.store import StoreConfig

    properties = {} if file is None else read_properties(file)
    source = _source(file)
    settings = {**properties, "storePathRootDir": str(root)}
    own = [key for key in _LOG_DIRECTORIES if key in settings]
    if own and (root / "commitlog").is_dir():
        named = properties.get("storePathRootDir", "").strip()
        original = Path(named) if named else _default_store(home_directory())
        if original.resolve() != root.resolve():  # the same directory has many names
            _log.warning(
                "%s: %s is a copy of %s: %s of the file is not used, only its own commitlog",
                source,
                root,
                original,
                ", ".join(f"{key}={settings.pop(key)}" for key in own),
            )
    return _filled(StoreConfig, settings, source)


def _default_store(home: Path | None) -> Path:
    return required(home, "give a file (-c) that says storePathRootDir") / "store"


def effective_text(*configs: object) -> str:
    """Return the properties text that describes configurations: the output of ``-p``."""
    return "".join(format_properties(to_properties(config)) for config in configs)


def _source(file: Path | None) -> str:
    return _NO_FILE if file is None else str(file)


def _review(properties: Mapping[str, str], used: set[str], file: Path | None) -> None:
    """Log keys that are not used, by name only: their values may be secrets."""
    ignored, unknown = review_keys(properties, used)
    if ignored:
        _log.debug("%s: RocketMQ's keys that pymq does not use: %s", file, ", ".join(ignored))
    for key, nearest in unknown:
        hint = f"did you mean {nearest}?" if nearest else "RocketMQ has no such key"
        _log.warning("%s: unknown key %s is ignored; %s", file, key, hint)


def _refuse_guards(properties: Mapping[str, str], source: str) -> None:
    """Look whether a file wants access control.

    Raises:
        ConfigurationError: it does.
    """
    for key in _GUARDS:
        if _is_true(properties.get(key, "")):
            raise ConfigurationError(
                f"{source}: {key}={properties[key].strip()}: there is no access control yet, and "
                "every client that reaches this broker may do everything; to start it all the "
                f"same, let only who may reach its port, and set {key}=false"
            )


def _warn_of_unkept(
    properties: Mapping[str, str],
    source: str,
    promises: Mapping[str, _Promise],
) -> None:
    for key, (is_promise, instead) in promises.items():
        if key in properties and is_promise(properties[key]):
            _log.warning("%s: %s=%s: %s", source, key, properties[key].strip(), instead)


def _with_address(settings: dict[str, str], key: str, source: str) -> dict[str, str]:
    """Resolve a ``brokerIP1``, say, that is a host name, as RocketMQ does for message ids."""
    host = settings.get(key, "").strip()
    if not host or _is_address(host):
        return settings
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"{source}: {key}={host!r}: the host cannot be resolved; give the IP address at "
            "which this machine is reached"
        ) from error
    _log.warning(
        "%s: %s=%s is a host name; clients are told its address, %s", source, key, host, address
    )
    return settings | {key: address}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_addresses(addresses: Iterable[str], where: str) -> None:
    for address in addresses:
        try:
            split_address(address)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
