"""Random requests: every code, with fields that are missing, odd, or of something that exists.

A handler is read for the names of the headers and bodies that it decodes, so that most requests
get past its first line.
"""

import base64
import importlib
import inspect
import json
import pkgutil
import random
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymq.protocol.headers
from pymq.net.dispatcher import Handler
from pymq.protocol import json_object
from pymq.protocol.codes import SEND_RECORDS, CommandFlag, RequestCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.headers import codec
from pymq.protocol.headers.send import LETTERS
from pymq.protocol.json_object import JsonObject
from pymq.protocol.sink_decisions import StagedRuns

RECORDED: Final = Path(__file__).with_name("java_requests.json")
#: Those that a server may hold for as long as the sender wants.
HELD: Final = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
    )
)
TOPICS: Final = ("fuzz", "fuzz-2", "%RETRY%g", "%DLQ%g", "%RETRY%g_fuzz", "TBW102", "new-topic")
GROUPS: Final = ("g", "g2", "CID_ONSAPI_x", "TOOLS_CONSUMER", "new-group")
_SYSTEM_TOPICS: Final = (
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster", "DefaultCluster",
    "broker-a", "OFFSET_MOVED_EVENT", "%LMQ%a", "RMQ_SYS_TRACE_TOPIC",
)  # fmt: skip
_TEXTS: Final = (
    "", " ", "a", "*", "TagA || b", "a > 1", "null", "true", "false", "-", "../../etc/passwd",
    "x" * 300, "topic with blanks", "\ud800", "ü", "\x00", "\x01\x02", "日本", "%s%n{}", "1 2 3",
    "[]", "{}", "{\"a\":", "+message.type=FIFO", "-x", "TAG", "SQL92", "127.0.0.1:1", "\u0662",
)  # fmt: skip
_NUMBERS: Final = (
    "0", "1", "-1", "2", "3", "7", "16", "32", "100", "1000", "-2", "65536", "2147483647",
    "2147483648", "-2147483648", "9223372036854775807", "-9223372036854775808",
    "9223372036854775808", "1" * 400, "1e3", "0x10", "1_000", "+5", " 7 ", "1.5", "NaN", "",
)  # fmt: skip
_JSON_VALUES: Final = (
    None, True, 0, -1, 1 << 62, 1 << 70, 1.5, "", "x", "\ud800", [], {}, [None], [[]], {"a": None},
    {"": {}}, "fuzz", "g", [1, "a", None], "TAG",
)  # fmt: skip

_BODIES: Final = (b"", b"[" * 2000, b"{}", b"[]", b"null", b'"x"', b"{{}:1}", b"1" * 5000)

#: Fields of sends that are not numbers.
_SEND_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "producerGroup": str,
    "topic": str,
    "defaultTopic": str,
    "properties": str,
    "unitMode": codec.parse_bool,
    "batch": codec.parse_bool,
    "brokerName": str,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a handler decodes: fields and how they are parsed, and the class of the body."""

    fields: dict[str, Callable[[str], object]]
    body: type[JsonObject] | None


def _header_classes() -> dict[str, type[codec.Header]]:
    package = pymq.protocol.headers
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return {kind.__name__: kind for kind in _below(codec.Header)}


def _body_classes() -> dict[str, type[JsonObject]]:
    for name in ("bodies", "admin_bodies", "client_bodies", "pop_bodies", "filter_body"):
        importlib.import_module(f"pymq.protocol.{name}")
    return {kind.__name__: kind for kind in _below(JsonObject)}


def _below(kind: type[Any]) -> list[type[Any]]:
    return [one for direct in kind.__subclasses__() for one in (direct, *_below(direct))]


def shapes_of(handlers: Mapping[int, Handler]) -> dict[int, Shape]:
    """Return what the handlers decode, as far as their source says it."""
    headers, bodies = _header_classes(), _body_classes()
    found = {}
    for code, handler in handlers.items():
        source = inspect.getsource(handler)
        for helper in set(re.findall(r"self\.(_\w+)\(request", source)):
            method = getattr(getattr(handler, "__self__", None), helper, None)
            if inspect.ismethod(method):
                source += inspect.getsource(method)
        names = re.findall(r"(\w+)\.(?:from_fields|of)\(", source)
        fields = {
            field.wire: field.parse
            for name in names
            if name in headers
            for field in codec._plan(headers[name])
        }
        body = next(
            (bodies[one] for one in re.findall(r"(\w+)\.decode\(", source) if one in bodies), None
        )
        found[int(code)] = Shape(fields, body)
    sends = {name: _SEND_PARSERS.get(name, codec.parse_int) for name in LETTERS}
    letters = {LETTERS[name]: parse for name, parse in sends.items()}
    for code, fields in (
        (int(RequestCode.SEND_MESSAGE), sends),
        (int(RequestCode.SEND_REPLY_MESSAGE), sends),
        (int(RequestCode.SEND_MESSAGE_V2), letters),
        (int(RequestCode.SEND_BATCH_MESSAGE), letters),
        (int(RequestCode.SEND_REPLY_MESSAGE_V2), letters),
        (SEND_RECORDS, letters),
    ):
        if code in found:
            found[code] = Shape(fields, None)
    return found


def recorded_requests() -> list[Command]:
    """Return requests of official clients and tools, one or a few of each kind."""
    return [
        Command(one["code"], one.get("fields"), base64.b64decode(one.get("body", "")), version=479)
        for one in json.loads(RECORDED.read_text())
    ]


class RequestMaker:
    """Makes random requests for a server.

    Args:
        dice: of everything.
        handlers: of the server.
        recorded: requests to change; may be empty.
    """

    def __init__(
        self, dice: random.Random, handlers: Mapping[int, Handler], recorded: Sequence[Command]
    ) -> None:
        self._dice = dice
        self._shapes = shapes_of(handlers)
        self._codes = [*self._shapes]
        self._all_codes = [*map(int, RequestCode), -1, 0, 9999, 1 << 31, -(1 << 31)]
        self._all_fields = sorted({name for one in self._shapes.values() for name in one.fields})
        self._recorded = recorded
        self._oddity = 0.0

    def make(self, opaque: int) -> Command:
        """Return one request."""
        dice = self._dice
        #: How much of it is odd: nothing, a field or two, or most of it.
        self._oddity = dice.choice((0.0, 0.05, 0.05, 0.5))
        if self._recorded and dice.random() < 0.4:
            request = self._changed(dice.choice(self._recorded))
        else:
            request = self._random()
        request.opaque = opaque
        if dice.random() < 0.02:
            request.flag |= int(CommandFlag.ONE_WAY)
        if dice.random() < 0.2 and request.code < 1 << 15:
            request.form = HeaderForm.BINARY
        if dice.random() < 0.1:
            request.version = dice.choice((0, 20, 313, 401, 409, 473, 501))
        return request

    def _random(self) -> Command:
        dice = self._dice
        code = dice.choice(self._codes if dice.random() < 0.97 else self._all_codes)
        shape = self._shapes.get(code) or Shape({}, None)
        fields = {name: self._value(name, parse) for name, parse in shape.fields.items()}
        self._spoil(fields)
        return Command(code, fields or None, self._body(code, shape.body))

    def _changed(self, recorded: Command) -> Command:
        fields, body = dict(recorded.fields or {}), bytes(recorded.body)
        parses = (self._shapes.get(recorded.code) or Shape({}, None)).fields
        for name in fields:
            if self._dice.random() < self._oddity:
                fields[name] = self._value(name, parses.get(name, str))
        self._spoil(fields)
        if self._dice.random() < self._oddity:
            body = self._torn(body)
        return Command(recorded.code, fields or None, body)

    def _spoil(self, fields: dict[str, str]) -> None:
        """Take fields away, and add some of others."""
        dice = self._dice
        for name in list(fields):
            if dice.random() < self._oddity / 2:
                del fields[name]
        while dice.random() < self._oddity / 2:
            name = dice.choice(self._all_fields)
            fields[name] = dice.choice(_TEXTS + _NUMBERS)

    def _value(self, name: str, parse: Callable[[str], object] = str) -> str:
        """Return a value of a field: mostly one that it might have."""
        dice, lower = self._dice, name.lower()
        if dice.random() < self._oddity and "heartbeat" not in lower:
            return dice.choice(_TEXTS + _NUMBERS)
        if parse is codec.parse_bool:
            return dice.choice(("true", "false"))
        if parse is codec.parse_int:
            if "heartbeat" in lower:  # the connection of a broker that is silent is closed
                return "60000"
            if "timeout" in lower or lower == "polltime":
                return dice.choice(("0", "1", "10", "-1"))
            if "time" in lower or lower == "g":
                return str(int(time.time() * 1000) + dice.choice((0, 0, -1000, 1000, -(1 << 40))))
            return dice.choice(("0", "0", "1", "2", "3", "16", "32"))
        if "topic" in lower or name in ("b", "l"):
            return dice.choice(TOPICS[:2] * 4 + TOPICS + _SYSTEM_TOPICS)
        if "group" in lower or name == "a":
            return dice.choice(GROUPS[:2] * 4 + GROUPS)
        if lower in ("properties", "i"):
            return self._properties()
        if "client" in lower:
            return dice.choice(("fuzz-client", "nobody"))
        if "expression" in lower or lower in ("subscription", "exp"):
            return dice.choice(("*", "TAG", "SQL92", "a > 1", "TagA || TagB", "a IS NOT NULL"))
        return dice.choice(_TEXTS)

    def _properties(self) -> str:
        dice = self._dice
        names = (
            "KEYS", "TAGS", "WAIT", "DELAY", "TRAN_MSG", "UNIQ_KEY", "TIMER_DELAY_SEC", "PGROUP",
            "TIMER_DELIVER_MS", "RECONSUME_TIME", "INNER_NUM", "REAL_TOPIC", "REAL_QID", "POP_CK",
            "INNER_MULTI_DISPATCH", "__CRC32#", "MAX_RECONSUME_TIMES", "REPLY_TO_CLIENT", "x", "",
            "TIMER_DELAY_MS", "TIMER_DEL_UNIQKEY", "CORRELATION_ID", "__SHARDINGKEY", "CLUSTER",
        )  # fmt: skip
        pairs = [
            f"{dice.choice(names)}\x01{dice.choice(_TEXTS + _NUMBERS + TOPICS)}"
            for _ in range(dice.randrange(4))
        ]
        return "\x02".join(pairs) + dice.choice(("", "\x02", "\x01"))

    def _body(self, code: int, kind: type[JsonObject] | None) -> bytes:
        dice = self._dice
        if dice.random() < self._oddity:
            return dice.choice((*_BODIES, dice.randbytes(dice.randrange(60))))
        if code in (RequestCode.SEND_BATCH_MESSAGE, SEND_RECORDS):
            return self._batch()
        if kind is not None:
            text = json.dumps(self._object(kind, depth=4), ensure_ascii=dice.random() < 0.5)
            return text.encode("utf-8", "replace")
        return b"" if dice.random() < 0.3 else dice.randbytes(dice.choice((1, 10, 100, 1000)))

    def _batch(self) -> bytes:
        entries = []
        for _ in range(self._dice.randrange(1, 5)):
            properties = self._properties().encode("utf-8", "replace")
            body = self._dice.randbytes(self._dice.randrange(50))
            rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body
            rest += struct.pack(">h", len(properties)) + properties
            entries.append(struct.pack(">i", len(rest) + 4) + rest)
        return b"".join(entries)

    def _object(self, kind: type[JsonObject], depth: int) -> dict[str, Any]:
        """Return a JSON object with the members of a body, or some of them, or wrong ones."""
        if kind is StagedRuns:
            return self._packed_runs()
        result: dict[str, Any] = {}
        for member in json_object._plan(kind):
            if self._dice.random() >= self._oddity / 2:
                result[member.wire] = self._member(member, depth)
        return result

    def _packed_runs(self) -> dict[str, Any]:
        dice = self._dice
        rows = [
            struct.pack(
                ">HiqiiQ",
                dice.choice((0, 0, 0, 1, 65535)),
                dice.choice((0, 1, 7, -1)),
                dice.choice((0, dice.randrange(1 << 20), (1 << 63) - 1)),
                dice.choice((0, dice.randrange(1 << 12), (1 << 31) - 1)),
                dice.choice((1, 1, 2, 0, (1 << 31) - 1)),
                dice.getrandbits(64),
            )
            for _ in range(dice.choice((0, 1, 1, 3, 100)))
        ]
        packed = base64.b64encode(b"".join(rows)).decode()
        return {"packed": packed, "topics": [self._value("topic") for _ in range(2)]}

    def _member(self, member: Any, depth: int) -> Any:
        dice = self._dice
        if dice.random() < self._oddity or depth == 0:
            return dice.choice(_JSON_VALUES)
        owner = getattr(member.read, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, JsonObject):
            return self._object(owner, depth - 1)
        cells = [cell.cell_contents for cell in getattr(member.read, "__closure__", None) or ()]
        inner = [one for one in cells if isinstance(getattr(one, "__self__", None), type)]
        if inner:
            kind = inner[-1].__self__
            objects = [self._object(kind, depth - 1) for _ in range(dice.randrange(3))]
            return objects if dice.random() < 0.8 else dict(zip("abc", objects, strict=False))
        if member.read is json_object._read_int:
            return int(dice.choice(_NUMBERS[:10]))
        if member.read is json_object._read_bool:
            return dice.random() < 0.5
        return self._value(member.wire)

    def _torn(self, data: bytes) -> bytes:
        """Return bytes with some changed, cut off or doubled."""
        dice = self._dice
        changed = bytearray(data)
        for _ in range(dice.randrange(4)):
            if changed:
                changed[dice.randrange(len(changed))] = dice.randrange(256)
        if dice.random() < 0.3:
            del changed[dice.randrange(len(changed) + 1) :]
        return bytes(changed)
