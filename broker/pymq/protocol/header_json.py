"""Reads and writes the JSON of headers, with orjson where it is installed.

Every request and every response has such a header. orjson takes half the time of the standard
library, and accepts a little less: what it refuses, the standard library decides.
"""

import json
from collections.abc import Callable, Mapping
from json.scanner import make_scanner
from typing import Any

__all__ = ["dump_json", "dump_json_slowly", "parse_json", "parse_json_slowly"]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_scan = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # as json.decoder does


def parse_json_slowly(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    # The scanner of json.loads, which spends as long again on detecting encoding and end.
    text = data.decode().lstrip()
    try:
        found, end = _scan(text, 0)
    except StopIteration as error:
        raise ValueError(f"no value at {error.value}") from error
    if end != len(text) and text[end:].strip():
        raise ValueError(f"something follows at {end}")
    return found


def dump_json_slowly(value: Mapping[str, Any]) -> bytes:
    """Return the JSON text of an object in UTF-8, without blanks.

    Raises:
        UnicodeEncodeError: a string contains half a surrogate pair.
    """
    return _encode(value).encode()


try:
    import orjson
except ImportError:
    parse_json: Callable[[bytes], Any] = parse_json_slowly
    dump_json: Callable[[Mapping[str, Any]], bytes] = dump_json_slowly
else:
    _loads, _dumps = orjson.loads, orjson.dumps

    def dump_json(value: Mapping[str, Any]) -> bytes:
        """Return what ``dump_json_slowly`` does, or raise that."""
        try:
            return _dumps(value)
        except TypeError:
            return dump_json_slowly(value)  # half a surrogate pair, or a number above 64 bits

    def parse_json(data: bytes) -> Any:
        """Return the value of a JSON text in UTF-8; raises what ``parse_json_slowly`` does."""
        try:
            return _loads(data)
        except ValueError:
            return parse_json_slowly(data)  # half a surrogate pair, NaN, or really not JSON
