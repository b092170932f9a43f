"""Secrets from files, addresses, certificates; and who can have how much of the log."""

import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from pymq.broker.ha.security import security_of
from pymq.broker.ha.sent_ends import ADDRESS_COUNT_MAX, SentEnds
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.errors import ConfigurationError

SECRET = "a secret of the tests"
TLS = Path(__file__).parents[3] / "cluster" / "tls"


def secret_file(path: Path, data: bytes, mode: int = 0o600) -> Path:
    file = path / "secret"
    file.write_bytes(data)
    os.chmod(file, mode)
    return file


def test_a_secret_is_the_same_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = security_of(ReplicationConfig(secret=SECRET)).secret
    assert expected == SECRET.encode()
    for text in (SECRET, SECRET + "\n", SECRET + "\r\n"):
        file = secret_file(tmp_path, text.encode())
        security = security_of(ReplicationConfig(secret_file=file))
        assert security.secret == expected
        assert SECRET not in repr(security)
    assert not caplog.records


def test_a_file_that_others_can_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    security_of(ReplicationConfig(secret_file=secret_file(tmp_path, SECRET.encode(), 0o644)))
    assert "can be read by other users of this machine: chmod 600" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("data", [b"", b"short\n", b"\xff" * 40, None])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "missing" if data is None else secret_file(tmp_path, data)
    with pytest.raises(ConfigurationError, match="pymqHaSecretFile"):
        security_of(ReplicationConfig(secret_file=file))


@pytest.mark.parametrize(
    ("settings", "host", "is_listed"),
    [
        ({}, "127.0.0.1", True),
        ({}, "::ffff:127.0.0.1", True),
        ({}, "::1", True),
        ({}, "10.0.0.1", False),
        ({"secret": SECRET}, "127.0.0.1", False),
        ({"secret": SECRET, "networks": ("10.0.0.0/8",)}, "10.0.0.1", True),
        ({"secret": SECRET, "networks": ("10.0.0.0/8",)}, "127.0.0.1", False),
        ({"networks": ()}, "127.0.0.1", False),
        ({}, "?", False),
        ({"networks": ("fe80::/10",)}, "fe80::1%eth0", True),
    ],
)
def test_with_a_secret_nobody_is_trusted_by_address_who_is_not_listed(
    settings: dict[str, Any], host: str, is_listed: bool
) -> None:
    assert security_of(ReplicationConfig(**settings)).lists(host) is is_listed


def tls_config(**settings: Any) -> ReplicationConfig:
    return ReplicationConfig(secret=SECRET, tls=True, **settings)


def test_tls_is_1_3_and_verifies(tmp_path: Path) -> None:
    own = {"tls_certificate": TLS / "master.pem", "tls_key": TLS / "master-key.pem"}
    authority = {"tls_authority": TLS / "authority.pem"}
    one_way = security_of(tls_config(**own)).tls
    mutual = security_of(tls_config(**own, **authority)).tls
    client = security_of(tls_config(role=Role.SLAVE, **authority)).tls
    assert one_way is not None
    assert mutual is not None
    assert client is not None
    assert one_way().verify_mode is ssl.CERT_NONE
    assert mutual().verify_mode is client().verify_mode is ssl.CERT_REQUIRED
    assert client().check_hostname
    for context in (one_way(), mutual(), client()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_slave_goes_by_an_authority_that_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = tmp_path / "authority.pem"
    shutil.copy(TLS / "authority.pem", authority)
    tls = security_of(tls_config(role=Role.SLAVE, tls_authority=authority)).tls
    assert tls is not None
    first = tls()
    assert tls() is first
    authority.unlink()
    assert tls() is tls() is first
    assert caplog.text.count("cannot be used") == 1
    shutil.copy(TLS / "other.pem", authority)
    other = tls()
    assert other is tls() is not first
    assert other.get_ca_certs() != first.get_ca_certs()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_certificate": TLS / "none.pem"}, "none.pem: No such file"),
        ({"tls_key": TLS / "slave-key.pem"}, "KEY_VALUES_MISMATCH"),
        ({"tls_certificate": TLS / "README.md"}, "README.md"),
        ({"tls_authority": TLS / "master-key.pem"}, "authorities .*master-key.pem"),
        ({"tls_authority": TLS}, "tls: Is a directory"),
    ],
)
def test_files_that_are_no_use_are_named(settings: dict[str, Any], said: str) -> None:
    own = {"tls_certificate": TLS / "master.pem", "tls_key": TLS / "master-key.pem"}
    with pytest.raises(ConfigurationError, match=said):
        security_of(tls_config(**own | settings))


def test_a_claim_counts_as_far_as_the_log_was_sent() -> None:
    ends = SentEnds(100)
    assert ends.credible("a", 50) == 50
    assert ends.credible("a", 101) == 100
    ends.sent("a", 300)
    ends.sent("a", 200)
    ends.sent("b", 20)
    assert [ends.credible(host, 1_000) for host in "abc"] == [300, 100, 100]
    for number in range(ADDRESS_COUNT_MAX):
        ends.sent(str(number), 400)
    assert ends.credible("a", 1_000) == 100, "forgotten"
    assert ends.credible("5", 1_000) == 400
