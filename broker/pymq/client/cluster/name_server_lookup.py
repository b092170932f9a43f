"""Name servers that are looked up: a web server knows their addresses (RocketMQ TopAddressing).

``http://host[:port]/path`` is asked with GET and answers the addresses, ``;`` between them, in its
first line. With a unit name ``-unit?nofix=1`` is put behind the path. It is asked again now and
then, and whoever can answer no longer is no trouble: the addresses before it stay in use.

Source: RocketMQ DefaultTopAddressing.fetchNSAddr, MQClientInstance.startScheduledTask.
"""

import re

from pymq.errors import ConfigurationError, ConnectionFailed

#: How often the addresses are looked up again (RocketMQ: 2 min).
LOOKUP_S = 120.0
LOOKUP_TIMEOUT_S = 3.0
#: More than any list of name servers has.
_ANSWER_BYTES_MAX = 64 << 10
_URL = re.compile(r"(https?)://([^/?#\s]+)(/[^?#\s]+)", re.IGNORECASE)


def is_lookup(text: str) -> bool:
    """Return whether this is the URL of a look-up, not an address."""
    return _URL.fullmatch(text) is not None


def look_up(url: str, unit_name: str | None = None) -> str:
    """Return the text with which a web server answers where the name servers are.

    Blocks: asyncio clients call it in a thread.

    Raises:
        ConnectionFailed: it cannot be reached, or answers something else.
    """
    import http.client  # 20 ms, which only those pay who need it

    matched = _URL.fullmatch(url)
    if matched is None:
        raise ConfigurationError(f"{url!r:.200}: expected http://host:port/path")
    scheme, host, path = matched.groups()
    if unit_name:
        path = f"{path}-{unit_name}?nofix=1"
    kind = (
        http.client.HTTPSConnection if scheme.lower() == "https" else http.client.HTTPConnection
    )
    try:
        connection = kind(host, timeout=LOOKUP_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read(_ANSWER_BYTES_MAX)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed(
            f"the name servers could not be looked up at {url}: {error or type(error).__name__}; "
            "is that web server running, and the URL right?"
        ) from error
    lines = body.decode("utf-8", "replace").strip().splitlines()
    if answer.status != 200 or not lines:
        raise ConnectionFailed(
            f"the name servers could not be looked up at {url}: status {answer.status}, "
            f"{body[:80]!r}, expected 200 and host:port;host:port"
        )
    return lines[0].strip()
