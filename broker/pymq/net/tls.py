"""TLS contexts from files; both ends are pymq, so only TLS 1.3 is spoken."""

import ssl
from pathlib import Path

from pymq.errors import ConfigurationError


def server_context(
    certificate: Path, key: Path, client_authority: Path | None
) -> ssl.SSLContext:
    """Return what a server needs.

    Args:
        certificate, key: PEM files; certificates of intermediate authorities follow the server's.
        client_authority: PEM file of those whose clients may connect; None: clients show none.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_certificate(context, certificate, key)
    if client_authority is not None:
        _load_authority(context, client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    authority: Path, certificate: Path | None, key: Path | None
) -> ssl.SSLContext:
    """Return what a client needs.

    Args:
        authority: PEM file of those whose servers are trusted.
        certificate, key: PEM files of what is shown to servers that ask for it.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate and its name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_authority(context, authority)
    if certificate is not None and key is not None:
        _load_certificate(context, certificate, key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for path in (certificate, key):
        _check_readable(path)
    try:
        # Without a function, OpenSSL asks the terminal for the password of the key.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigurationError(
            f"certificate {certificate} with key {key}: {_reason(error)}; expected PEM files that "
            "belong together, the key without a password"
        ) from error


def _load_authority(context: ssl.SSLContext, authority: Path) -> None:
    _check_readable(authority)
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"certificates of authorities {authority}: {_reason(error)}; expected a PEM file"
        ) from error


def _check_readable(path: Path) -> None:
    """OpenSSL's errors do not say which of two files it is."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror or error}; give a file that can be read"
        ) from error


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
