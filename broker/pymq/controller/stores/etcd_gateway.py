"""Calls etcd: any of its members, in threads of a small pool.

The library is ``etcd3gw``, which speaks to the JSON gateway that every member of etcd has. It is
kept by OpenStack with a release every few months, is pure Python, and has TLS with certificates of
clients; the asyncio ones are gRPC's compiled code without TLS (aetcd), or are not kept any more.
It blocks, so each call runs in a thread.
"""

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pymq import extras
from pymq.controller.stores.interface import unavailable
from pymq.errors import ConfigurationError

if TYPE_CHECKING:
    from etcd3gw import Etcd3Client

_log = logging.getLogger(__name__)

DEFAULT_PORT = 2379
#: The API of etcd 3.4 and later.
_API_PATH = "/v3/"
#: A member that takes longer is taken for dead, and the next one is asked.
TIMEOUT_S = 1.0
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTls:
    """Files for https; None: the system's certificates, and no certificate of our own.

    The certificate and its key are given together.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class _Endpoint:
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class EtcdGateway:
    """One line to an etcd cluster; calls on different lines do not wait for one another.

    Args:
        urls: of its members, ``http://host:port``.
        tls: for https; with a file in it, every URL must be one of https.
        thread_count: calls that can be under way at once.

    Raises:
        ConfigurationError: a URL is none, or not one of https, or the library is missing.
    """

    def __init__(self, urls: Sequence[str], tls: EtcdTls, *, thread_count: int) -> None:
        try:
            extras.require("etcd3gw", by="--store etcd:")
        except ModuleNotFoundError as error:
            raise ConfigurationError(str(error)) from error
        self._endpoints = [_endpoint(url) for url in urls]
        plain = [one for one in self._endpoints if one.scheme != "https"]
        if plain and tls != EtcdTls():
            raise ConfigurationError(
                f"--store etcd: {plain[0]} with pymqEtcdCaFile or pymqEtcdCertificateFile would be "
                f"plain text; expected https://host:{DEFAULT_PORT}"
            )
        self._tls = tls
        self._preferred = 0
        self._clients = threading.local()
        self._threads = ThreadPoolExecutor(thread_count, "controller-etcd")

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the first member that gives one.

        Args:
            path: of the API, as ``kv/txn``.
            body: JSON.

        Raises:
            BrokerError: none did. The request may have been carried out, even more than once.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._call, path, body)
        except RuntimeError as error:  # the pool is closed
            raise unavailable("this controller is stopping") from error

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        from etcd3gw.exceptions import Etcd3Exception
        from requests import RequestException

        failures = []
        first = self._preferred
        for turn in range(len(self._endpoints)):
            number = (first + turn) % len(self._endpoints)
            try:
                client = self._client(number)
                answer: dict[str, Any] = client.post(client.get_url(path), json=body)
            except (Etcd3Exception, RequestException, ValueError, OSError) as error:
                failures.append(f"{self._endpoints[number]}: {_reason(error)}")
                continue
            self._preferred = number
            return answer
        raise unavailable(f"etcd cannot be used: {'; '.join(failures)}{_advice(failures)}")

    def _client(self, number: int) -> "Etcd3Client":
        from etcd3gw import Etcd3Client
        from requests import Session

        clients: dict[int, Etcd3Client] | None = getattr(self._clients, "made", None)
        if clients is None:
            clients = self._clients.made = {}
        if number not in clients:
            session = Session()
            session.trust_env = False  # no proxy of the environment between us and etcd
            if self._tls.ca_file is not None:
                session.verify = self._tls.ca_file
            if self._tls.certificate_file is not None and self._tls.key_file is not None:
                session.cert = (self._tls.certificate_file, self._tls.key_file)
            endpoint = self._endpoints[number]
            clients[number] = Etcd3Client(
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.scheme,
                timeout=TIMEOUT_S,
                api_path=_API_PATH,
                session=session,
            )
        return clients[number]

    async def close(self) -> None:
        """End the threads; idempotent. A call under way ends by its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _endpoint(url: str) -> _Endpoint:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise ConfigurationError(f"--store etcd: {url!r}, expected http://host:{DEFAULT_PORT}")
    return _Endpoint(parts.scheme, parts.hostname, port or DEFAULT_PORT)


def _reason(error: Exception) -> str:
    """Return what etcd itself says, or what the library does."""
    detail = getattr(error, "detail_text", None)
    if detail:
        try:
            said = json.loads(detail)
            return str(said.get("message") or said.get("error") or said)[:_TEXT_MAX]
        except (ValueError, AttributeError):
            return str(detail)[:_TEXT_MAX]
    return (str(error) or type(error).__name__)[:_TEXT_MAX]


def _advice(failures: Sequence[str]) -> str:
    text = " ".join(failures)
    if "space exceeded" in text:
        return (
            ". It has no room and takes no writes: compact and defragment it, then "
            "'etcdctl alarm disarm'"
        )
    if "timed out" in text or "no leader" in text:
        return ". Has it lost its majority?"
    return ""


def encode(text: str | bytes) -> str:
    """Return a key or value as the gateway takes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def decode(text: str) -> bytes:
    """Return the bytes of a key or value from the gateway."""
    return base64.b64decode(text)
