"""One remoting command and its header in both forms.

JSON header (form 0), a UTF-8 object::

    {"code":105,"extFields":{"topic":"TopicA"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":479}

Binary header (form 1), big-endian::

    2  code, signed        4  opaque, signed     4 + n  remark, UTF-8; n = 0: absent
    1  language            4  flag               4 + m  fields: (2 + n key, 4 + n value)*
    2  version, signed

Codes above 32767 keep only their low 16 bits in the binary form. Source: RocketMQ
RemotingCommand, RocketMQSerializable.
"""

import json
import reprlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.codes import MQ_VERSION, CommandFlag, LanguageCode
from pymq.protocol.header_json import dump_json, parse_json

_RESPONSE = int(CommandFlag.RESPONSE)
_ONE_WAY = int(CommandFlag.ONE_WAY)
_BINARY_FIXED = struct.Struct(">hBhiiI")
_INT = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_LANGUAGE_NAMES = {int(code): code.name for code in LanguageCode}
_LANGUAGE_NUMBERS = {code.name: int(code) for code in LanguageCode}
#: Shows the beginning of a value in errors: whole, it could be as long as a frame.
_shown = reprlib.repr


class HeaderForm(IntEnum):
    """How a frame's header is serialized; every frame says its own."""

    JSON = 0
    BINARY = 1


@dataclass(slots=True)
class Command:
    """A request or a response.

    ``body`` belongs to the command; a memoryview stays valid as long as the command exists.
    """

    code: int
    fields: dict[str, str] | None = None
    body: bytes | memoryview = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = LanguageCode.PYTHON
    version: int = MQ_VERSION
    form: HeaderForm = HeaderForm.JSON

    @property
    def is_response(self) -> bool:
        """Is this the answer to a request?"""
        return bool(self.flag & _RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Does the sender expect no answer, not even an error?"""
        return bool(self.flag & _ONE_WAY)

    def reply(
        self,
        code: int,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> "Command":
        """Return the response to this request, in the form the request came in."""
        # Servers call themselves JAVA: a few tools print the name and expect one they know.
        return Command(code, fields, body, remark, self.opaque, _RESPONSE, 0, MQ_VERSION, self.form)


def encode_header(command: Command) -> bytes:
    """Return the header bytes of a command, in the command's own form.

    Raises:
        LocalProtocolError: a string or a number does not fit into the form.
    """
    if command.form is HeaderForm.BINARY:
        return _encode_binary(command)
    header: dict[str, Any] = {"code": command.code}
    if command.fields is not None:
        header["extFields"] = command.fields
    header["flag"] = command.flag
    header["language"] = _LANGUAGE_NAMES.get(command.language, "OTHER")
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    try:
        return dump_json(header)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a string of the header is not Unicode: {error}") from error


def decode_header(form: int, header: bytes, body: bytes | memoryview) -> Command:
    """Return the command of one frame.

    Raises:
        RemoteProtocolError: the header is not what ``form`` says, or ``form`` is unknown.
    """
    if form == 0:
        return _decode_json(header, body)
    if form == 1:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"header serialization {form}, expected 0 (JSON) or 1 (binary)")


def _decode_json(header: bytes, body: bytes | memoryview) -> Command:
    try:
        found = parse_json(header)
        code = found["code"]
        opaque = found.get("opaque", 0)
        flag = found.get("flag", 0)
        version = found.get("version", 0)
        fields = found.get("extFields")
        remark = found.get("remark")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(
            # Not its repr, which has all the bytes in it that are not UTF-8.
            f"JSON header of {len(header)} B cannot be read: {type(error).__name__}: {error!s:.80}"
        ) from error
    if not type(code) is type(opaque) is type(flag) is type(version) is int:
        raise RemoteProtocolError(
            f"JSON header with code {_shown(code)}, opaque {_shown(opaque)}, flag {_shown(flag)}, "
            f"version {_shown(version)}, expected numbers"
        )
    if fields is not None:
        fields = _string_map(fields)
    if remark is not None and type(remark) is not str:
        raise RemoteProtocolError(f"JSON header's remark is {_shown(remark)}, expected a string")
    language = found.get("language")
    number = _LANGUAGE_NUMBERS.get(language, 7) if type(language) is str else 7
    return Command(code, fields, body, remark, opaque, flag, number, version, HeaderForm.JSON)


def _string_map(fields: Any) -> dict[str, str]:
    """Return extFields with only strings as values; Java also accepts numbers and booleans."""
    if type(fields) is not dict:
        raise RemoteProtocolError(f"extFields is a {type(fields).__name__}, expected an object")
    try:
        "".join(fields.values())  # the fastest way to see that all of them are strings
    except TypeError:
        return _as_strings(fields)
    return fields


def _as_strings(fields: dict[str, Any]) -> dict[str, str]:
    strings = {}
    for key, value in fields.items():
        if value is None:
            continue
        if isinstance(value, (dict, list)):
            raise RemoteProtocolError(f"extFields[{_shown(key)}] is nested, expected a string")
        strings[key] = value if isinstance(value, str) else json.dumps(value)
    return strings


def _encode_binary(command: Command) -> bytes:
    entries = bytearray()
    try:
        remark = (command.remark or "").encode()
        for key, value in (command.fields or {}).items():
            raw_key, raw_value = key.encode(), value.encode()
            if len(raw_key) > 0x7FFF:
                raise LocalProtocolError(f"field name of {len(raw_key)} B, expected 0..32767")
            entries += _SHORT.pack(len(raw_key)) + raw_key + _INT.pack(len(raw_value)) + raw_value
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a string of the header is not Unicode: {error}") from error
    code = ((command.code + 0x8000) & 0xFFFF) - 0x8000
    try:
        fixed = _BINARY_FIXED.pack(
            code, command.language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error as error:
        raise LocalProtocolError(f"binary header cannot hold {command!r:.200}") from error
    return b"".join((fixed, remark, _INT.pack(len(entries)), entries))


def _decode_binary(header: bytes, body: bytes | memoryview) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark = header[position : position + remark_bytes].decode()
        position += remark_bytes
        (fields_bytes,) = _INT.unpack_from(header, position)
        position += 4
        if position + fields_bytes > len(header):
            raise RemoteProtocolError(
                f"binary header of {len(header)} B announces fields up to {position + fields_bytes}"
            )
        fields = _binary_fields(header, position, position + fields_bytes)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"binary header of {len(header)} B cannot be read: {error}"
        ) from error
    return Command(
        code,
        fields or None,
        body,
        remark or None,
        opaque,
        flag,
        language,
        version,
        HeaderForm.BINARY,
    )


def _binary_fields(header: bytes, position: int, end: int) -> dict[str, str]:
    fields = {}
    while position < end:
        (key_bytes,) = _SHORT.unpack_from(header, position)
        key_end = position + 2 + key_bytes
        (value_bytes,) = _INT.unpack_from(header, key_end)
        value_end = key_end + 4 + value_bytes
        if value_end > end:
            raise RemoteProtocolError(
                f"binary header field runs to {value_end}, beyond the fields' end {end}"
            )
        key = header[position + 2 : key_end].decode()
        fields[key] = header[key_end + 4 : value_end].decode()
        position = value_end
    return fields
