"""The store that ``--store`` names."""

from pathlib import Path

from pymq.controller.config import ControllerConfig
from pymq.controller.stores.etcd_gateway import EtcdTls
from pymq.controller.stores.etcd_store import EtcdStore
from pymq.controller.stores.file_store import FileStore
from pymq.controller.stores.interface import ControllerStore
from pymq.errors import ConfigurationError

_EXPECTED = (
    "expected file:DIRECTORY (one controller, on one machine) or "
    "etcd:http://host:2379,http://host2:2379 (any number of controllers)"
)


def open_store(config: ControllerConfig, self_id: str, address: str) -> ControllerStore:
    """Return the store of a controller, not started yet.

    Args:
        config: names it.
        self_id: name of this controller.
        address: ``host:port`` of this controller for brokers.

    Raises:
        ConfigurationError: there is no such store.
    """
    kind, colon, where = config.store.partition(":")
    if colon and where and kind == "file":
        return FileStore(Path(where).absolute(), self_id=self_id, address=address)
    if colon and where and kind == "etcd":
        return EtcdStore(
            [url.strip() for url in where.split(",") if url.strip()],
            EtcdTls(
                ca_file=config.etcd_ca_file,
                certificate_file=config.etcd_certificate_file,
                key_file=config.etcd_key_file,
            ),
            group=config.group,
            self_id=self_id,
            address=address,
            lease_s=config.etcd_lease_s,
        )
    raise ConfigurationError(f"--store {config.store or 'is missing'}: {_EXPECTED}")
