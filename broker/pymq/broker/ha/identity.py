"""ROOT/brokerIdentity: who this broker is in its group, as the controller has numbered it.

::

    DefaultCluster#broker-a#2

While an id is applied for, ``brokerIdentity-temp`` holds it, with what proves that it was us who
applied: ``DefaultCluster#broker-a#2#127.0.0.1:10911;1700000000000``. The files are RocketMQ's.

Source: RocketMQ BrokerMetadata, TempBrokerMetadata.
"""

from dataclasses import dataclass
from pathlib import Path

from pymq.errors import ConfigurationError, CorruptRecord, StoreMismatch
from pymq.store import Files
from pymq.store.state.sealed_file import replace_file

NAME, TEMPORARY_NAME = "brokerIdentity", "brokerIdentity-temp"


@dataclass(frozen=True, slots=True)
class Identity:
    """One broker of a group; ``check_code`` while its id is applied for."""

    cluster: str
    name: str
    broker_id: int
    check_code: str | None = None

    def encode(self) -> bytes:
        """Return the content of the file."""
        parts = [self.cluster, self.name, str(self.broker_id)]
        if self.check_code is not None:
            parts.append(self.check_code)
        return "#".join(parts).encode()


class IdentityFiles:
    """The two files; used in any thread, by one at a time."""

    def __init__(self, root: Path, *, cluster: str, name: str) -> None:
        """Begin without reading.

        Raises:
            ConfigurationError: the files could not be read back with these names.
        """
        for key, value in (("brokerClusterName", cluster), ("brokerName", name)):
            if "#" in value or value != value.strip():
                raise ConfigurationError(
                    f"{key}={value!r}: with a controller (enableControllerMode), names have no # "
                    f"and no blank at either end: {NAME} holds them, and could not be read again"
                )
        self._files = Files()
        self._path = root / NAME
        self._temporary = root / TEMPORARY_NAME
        self._cluster, self._name = cluster, name

    def load(self) -> Identity | None:
        """Return what is there: an identity, or one that is applied for.

        Raises:
            CorruptRecord: it cannot be read.
            StoreMismatch: it is that of a broker of another name.
        """
        for path, count in ((self._path, 3), (self._temporary, 4)):
            data = self._files.read_file(path)
            if not data:
                continue
            parts = data.decode("utf-8", "replace").strip().split("#")
            if len(parts) != count or not parts[2].isdecimal():
                raise CorruptRecord(
                    f"{path}: {data[:80]!r}, expected cluster#name#id: restore it, or delete it "
                    "(not the log), and this broker gets another id"
                )
            if parts[:2] != [self._cluster, self._name]:
                raise StoreMismatch(
                    f"{path}: this store is that of broker {parts[1]} of cluster {parts[0]}, not "
                    f"of {self._name} of {self._cluster}: set brokerName and brokerClusterName "
                    "as they were, or use another store directory"
                )
            check_code = parts[3] if count > len(parts[:3]) else None
            return Identity(parts[0], parts[1], int(parts[2]), check_code)
        return None

    def save(self, identity: Identity) -> None:
        """Keep an identity, or one that is applied for.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        self._files.make_directory(self._path.parent, 0o700)
        if identity.check_code is not None:
            replace_file(self._files, self._temporary, identity.encode())
            return
        replace_file(self._files, self._path, identity.encode())
        self.forget_application()

    def forget_application(self) -> None:
        """Remove what is applied for."""
        if self._files.exists(self._temporary):
            self._files.remove(self._temporary)
