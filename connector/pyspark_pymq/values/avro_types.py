"""An Avro schema as a Spark type, as Spark's own ``from_avro`` has it, and as a plan to read it.

fastavro reads what the bytes say, and Arrow makes the types. So a schema is rewritten such that
its bytes stay the same and fastavro returns what Arrow takes as it is:

=================================  =============================================================
in the schema                      is read as
=================================  =============================================================
logical type (date, decimal ...)   its plain type: days, microseconds, bytes
map                                array of records of ``key`` and ``value``, which is its form
union of several types             union of records with the one field ``member0``, ``member1``
                                   ..., of which the bytes are those of the field
=================================  =============================================================

A Spark type: null and something is that something, nullable; int and long are ``bigint``, float and
double ``double``; any other union is a struct of its members, all of them null but one. Enums are
strings, fixed is binary. Times of day and ``timestamp-nanos`` are the numbers they are stored as.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from pyspark.sql import types as spark

_NULL = "null"
_SIMPLE: dict[str, spark.DataType] = {
    _NULL: spark.NullType(),
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bytes": spark.BinaryType(),
    "string": spark.StringType(),
    "enum": spark.StringType(),
    "fixed": spark.BinaryType(),
}
#: (plain type, logical type) -> Spark type, and microseconds that one of its numbers counts.
_TIMES: dict[tuple[str, str], tuple[spark.DataType, int]] = {
    ("int", "date"): (spark.DateType(), 0),
    ("long", "timestamp-millis"): (spark.TimestampType(), 1000),
    ("long", "timestamp-micros"): (spark.TimestampType(), 1),
    ("long", "local-timestamp-millis"): (spark.TimestampNTZType(), 1000),
    ("long", "local-timestamp-micros"): (spark.TimestampNTZType(), 1),
}
#: As Spark's.
_DIGITS_MAX = 38
#: More digits than Arrow takes: so none is lost before Arrow refuses the number.
_EXACT = Context(prec=100)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one type of a schema is read and written.

    Attributes:
        rewritten: its schema, see above.
        spark_type: what it is in Spark.
        nullable: it is null, or a union with null.
        from_avro: makes what Arrow takes of what fastavro returns; None: it is the same.
        to_avro: makes what fastavro takes of what Arrow returns; None: it is the same.
    """

    rewritten: Any
    spark_type: spark.DataType
    nullable: bool = False
    from_avro: Callable[[Any], Any] | None = None
    to_avro: Callable[[Any], Any] | None = None


def plan_of(text: str) -> Plan:
    """Return the plan of a schema, which is a record.

    Raises:
        ValueError: it is not a schema, or has what Spark has no type for.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError('expected a record: {"type": "record", "name": ..., "fields": [...]}')
    try:
        return _Planner().plan(schema, "", "value")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a schema: {error!r:.200}") from error


class _Planner:
    """Plans one schema.

    Named types are rewritten where they are used, under another name each time: a name may stand
    for one type only.
    """

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Any]] = {}
        self._open: list[str] = []
        self._count = 0

    def plan(self, schema: Any, namespace: str, path: str) -> Plan:
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        if isinstance(schema, str):
            if schema in _SIMPLE and schema not in ("enum", "fixed"):
                return Plan(schema, _SIMPLE[schema], nullable=schema == _NULL)
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            named = self._named.get(full) or self._named.get(schema)
            if named is None:
                raise ValueError(f"{path}: there is no type {schema!r}")
            return self.plan(named, namespace, path)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError(f"{path}: {schema!r:.80} is not a type")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema, namespace, path)
        if kind == "array":
            return self._array(schema, namespace, path)
        if kind == "map":
            return self._map(schema, namespace, path)
        if isinstance(kind, str) and kind in _SIMPLE and kind != _NULL:
            return _with_logical_type(kind, kind, schema)
        return self.plan(kind, namespace, path)

    def _new_name(self) -> str:
        self._count += 1
        return f"type{self._count}"

    def _of_name(self, schema: dict[str, Any], namespace: str, path: str) -> Plan:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{path}: a {schema['type']} has no name")
        namespace = name.rpartition(".")[0] or schema.get("namespace", namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        known = self._named.setdefault(full, schema | {"name": full})
        if full in self._open:
            raise ValueError(f"{path}: type {full} has itself as a part, which Spark cannot hold")
        if schema["type"] == "enum":
            symbols = known["symbols"]
            renamed = {"type": "enum", "name": self._new_name(), "symbols": symbols}
            return Plan(renamed, _SIMPLE["enum"])
        if schema["type"] == "fixed":
            renamed = {"type": "fixed", "name": self._new_name(), "size": schema["size"]}
            return _with_logical_type("fixed", renamed, schema)
        self._open.append(full)
        fields = []
        for field in schema.get("fields", ()):
            if not isinstance(field, dict) or "name" not in field or "type" not in field:
                raise ValueError(f"{path}: {field!r:.80} is not a field")
            where = f"{path}.{field['name']}"
            fields.append((field["name"], self.plan(field["type"], namespace, where)))
        self._open.pop()
        if not fields:
            raise ValueError(f"{path}: record {full} has no fields")
        return self._record(fields)

    def _record(self, fields: list[tuple[str, Plan]]) -> Plan:
        rewritten = {
            "type": "record",
            "name": self._new_name(),
            "fields": [{"name": name, "type": plan.rewritten} for name, plan in fields],
        }
        kind = spark.StructType(
            [spark.StructField(name, plan.spark_type, plan.nullable) for name, plan in fields]
        )
        return Plan(
            rewritten,
            kind,
            from_avro=_of_fields([(name, plan.from_avro) for name, plan in fields]),
            to_avro=_of_fields([(name, plan.to_avro) for name, plan in fields]),
        )

    def _array(self, schema: dict[str, Any], namespace: str, path: str) -> Plan:
        item = self.plan(schema.get("items"), namespace, f"{path}.element")
        if _takes_no_bytes(item.rewritten):
            # fastavro would make as many as a few bytes can say.
            raise ValueError(f"{path}.element takes no bytes: an array of it has no bound")
        return Plan(
            {"type": "array", "items": item.rewritten},
            spark.ArrayType(item.spark_type, item.nullable),
            from_avro=_of_items(item.from_avro),
            to_avro=_of_items(item.to_avro),
        )

    def _map(self, schema: dict[str, Any], namespace: str, path: str) -> Plan:
        item = self.plan(schema.get("values"), namespace, f"{path}.value")
        entry = {
            "type": "record",
            "name": self._new_name(),
            "fields": [
                {"name": "key", "type": "string"},
                {"name": "value", "type": item.rewritten},
            ],
        }
        read, write = item.from_avro or _same, item.to_avro or _same

        def from_avro(entries: list[dict[str, Any]]) -> list[tuple[str, Any]]:
            # Of a key that is there twice the last one counts, as in a map of Java.
            return list({e["key"]: read(e["value"]) for e in entries}.items())

        def to_avro(entries: list[tuple[str, Any]]) -> list[dict[str, Any]]:
            return [{"key": key, "value": write(value)} for key, value in entries]

        to_avro_or_null = _of_something(to_avro)
        return Plan(
            {"type": "array", "items": entry},
            spark.MapType(spark.StringType(), item.spark_type, item.nullable),
            from_avro=from_avro,
            to_avro=to_avro_or_null,
        )

    def _union(self, schema: list[Any], namespace: str, path: str) -> Plan:
        branches = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        nullable = len(branches) < len(schema)
        if not branches:
            return Plan(schema, spark.NullType(), nullable)
        plans = [self.plan(branch, namespace, path) for branch in branches]
        if len(plans) == 1:
            (plan,) = plans
            rewritten = plan.rewritten
            if nullable:
                at = schema.index(branches[0])
                rewritten = ["null", rewritten] if at else [rewritten, "null"]
            else:
                rewritten = [rewritten]
            return Plan(
                rewritten,
                plan.spark_type,
                nullable or plan.nullable,
                from_avro=_of_something(plan.from_avro),
                to_avro=_of_something(plan.to_avro),
            )
        rewritten = [plan.rewritten for plan in plans]
        for kinds in (("int", "long"), ("float", "double")):
            if set(map(repr, rewritten)) == set(map(repr, kinds)) and len(rewritten) == 2:
                # fastavro would write the first that can hold the number, if not all of it.
                write = functools.partial(_of_branch, kinds[1])
                union = _as_in(schema, branches, rewritten)
                return Plan(union, _SIMPLE[kinds[1]], nullable, to_avro=_of_something(write))
        return self._members(schema, branches, plans, nullable)

    def _members(
        self, schema: list[Any], branches: list[Any], plans: list[Plan], nullable: bool
    ) -> Plan:
        """Return the plan of a union as a struct, of which one member is not null."""
        names = [self._new_name() for _ in plans]
        members = [f"member{at}" for at in range(len(plans))]
        wrapped = [
            {
                "type": "record",
                "name": name,
                "fields": [{"name": member, "type": plan.rewritten}],
            }
            for name, member, plan in zip(names, members, plans, strict=True)
        ]
        kind = spark.StructType(
            [
                spark.StructField(member, plan.spark_type, True)
                for member, plan in zip(members, plans, strict=True)
            ]
        )
        readers = {
            member: plan.from_avro or _same for member, plan in zip(members, plans, strict=True)
        }
        writers = [
            (member, name, plan.to_avro or _same)
            for member, name, plan in zip(members, names, plans, strict=True)
        ]

        def from_avro(value: Any) -> Any:
            if value is None:
                return None
            ((member, found),) = value.items()
            return {member: readers[member](found)}

        def to_avro(value: Any) -> Any:
            if value is None:
                return None
            given = [entry for entry in writers if value[entry[0]] is not None]
            if len(given) != 1:
                raise ValueError(
                    f"of {', '.join(members)} {len(given)} are not null, expected exactly one"
                )
            ((member, name, write),) = given
            return (name, {member: write(value[member])})

        return Plan(_as_in(schema, branches, wrapped), kind, nullable, from_avro, to_avro)


def _takes_no_bytes(rewritten: Any) -> bool:
    """Say whether a value of a type is encoded in no byte at all."""
    match rewritten:
        case {"type": "record", "fields": fields}:
            return all(_takes_no_bytes(field["type"]) for field in fields)
        case {"type": "fixed", "size": size}:
            return bool(size == 0)
    return bool(rewritten == _NULL)


def _as_in(schema: list[Any], branches: list[Any], rewritten: list[Any]) -> list[Any]:
    """Return a union with its branches rewritten, and null where it was."""
    left = iter(rewritten)
    return [next(left) if branch in branches else "null" for branch in schema]


def _with_logical_type(kind: str, rewritten: Any, schema: dict[str, Any]) -> Plan:
    """Return the plan of a type that may have a logical one; an unknown one counts for nothing."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 0 <= scale <= precision <= _DIGITS_MAX
            and precision > 0
        ):
            return _decimal_plan(rewritten, precision, scale, schema.get("size"))
    time = _TIMES.get((kind, str(logical)))
    if time is None:
        return Plan(rewritten, _SIMPLE[kind])
    spark_type, unit_us = time
    if unit_us == 1000:
        return Plan(rewritten, spark_type, from_avro=_times_1000, to_avro=_of_something(_by_1000))
    return Plan(rewritten, spark_type)


def _decimal_plan(rewritten: Any, precision: int, scale: int, size: int | None) -> Plan:
    """Return the plan of decimals, which are whole numbers of ``scale`` digits too many.

    Args:
        rewritten: bytes or fixed, whose bytes are those of the number, high ones first.
        precision, scale: digits, and how many of them stand behind the point.
        size: of fixed.
    """

    def from_avro(value: bytes) -> Decimal:
        return _EXACT.scaleb(Decimal(int.from_bytes(value, "big", signed=True)), -scale)

    def to_avro(value: Decimal) -> bytes:
        number = int(_EXACT.scaleb(value, scale))
        return number.to_bytes(size or number.bit_length() // 8 + 1, "big", signed=True)

    kind = spark.DecimalType(precision, scale)
    return Plan(rewritten, kind, from_avro=from_avro, to_avro=_of_something(to_avro))


def _same(value: Any) -> Any:
    return value


def _of_branch(name: str, value: Any) -> tuple[str, Any]:
    """Return a value of a certain branch of a union, as fastavro has it."""
    return name, value


def _times_1000(value: int) -> int:
    return value * 1000


def _by_1000(value: int) -> int:
    """Return milliseconds; as in Spark what is less of one is dropped."""
    return value // 1000


def _of_something(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _of_items(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda items: None if items is None else [convert(item) for item in items]


def _of_fields(
    fields: list[tuple[str, Callable[[Any], Any] | None]],
) -> Callable[[Any], Any] | None:
    converts = [(name, convert) for name, convert in fields if convert is not None]
    if not converts:
        return None

    def convert_fields(value: Any) -> Any:
        if value is None:  # which fastavro refuses, if it is wrong
            return None
        for name, convert in converts:
            value[name] = convert(value[name])
        return value

    return convert_fields
