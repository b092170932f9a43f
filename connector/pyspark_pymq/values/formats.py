"""The formats of values, as options of source and sink name them.

==========  ===================  ====================================================
format      column of the value  what a body is
==========  ===================  ====================================================
binary      ``body`` binary      anything
string      ``body`` string      UTF-8
json        ``value`` struct     one JSON document, an object: ``json_rows``
avro        ``value`` struct     one Avro datum of a known schema: ``avro_values``
==========  ===================  ====================================================
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq.values.avro_types import plan_of
from pyspark_pymq.values.avro_values import AvroDecoder, AvroEncoder, check_avro
from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.decoded import Decoded, Place
from pyspark_pymq.values.json_decode import JsonDecoder
from pyspark_pymq.values.json_encode import encode_json
from pyspark_pymq.values.json_rows import check_json_type
from pyspark_pymq.values.spark_types import as_nullable

BINARY, STRING, JSON, AVRO = "binary", "string", "json", "avro"
NAMES = (BINARY, STRING, JSON, AVRO)


class Decoder(Protocol):
    """Makes values of bodies."""

    def decode(self, bodies: pa.Array) -> Decoded:
        """Return the values of a binary array."""


#: Makes a binary array of structs, and of what names a row for errors.
Encode = Callable[[pa.Array, Place], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """What bodies mean.

    Attributes:
        name: one of ``NAMES``.
        value_type: of the column ``value``, as far as options tell; None: they do not.
        avro_schema: JSON text.
    """

    name: str = BINARY
    value_type: spark.StructType | None = None
    avro_schema: str | None = None

    @property
    def has_struct(self) -> bool:
        """Say whether values are structs, in a column ``value``."""
        return self.name in (JSON, AVRO)

    def decoder(self, target: spark.DataType, arrow: pa.DataType) -> Decoder:
        """Return what makes values of bodies.

        Args:
            target: the type of the column.
            arrow: the same in Arrow.
        """
        if self.name == STRING:
            return _StringDecoder()
        if self.avro_schema is not None:
            return AvroDecoder(self.avro_schema, arrow)
        assert isinstance(target, spark.StructType)
        return JsonDecoder(target)

    def encode(self) -> Encode | None:
        """Return what makes bodies of values; None: they are bodies already."""
        if not self.has_struct:
            return None
        return encode_json if self.avro_schema is None else AvroEncoder(self.avro_schema).encode


BODIES = ValueFormat()


def value_format(
    name: str,
    *,
    value_type: spark.StructType | None = None,
    avro_schema: str | None = None,
    file_schema: str | None = None,
) -> ValueFormat:
    """Return a format as the options say.

    Args:
        name: valueFormat.
        value_type: valueSchema.
        avro_schema: avroSchema.
        file_schema: what is in avroSchemaFile.

    Raises:
        ConfigurationError: they contradict each other, or one is missing.
    """
    for option, value, wanted in (
        ("valueSchema", value_type, JSON),
        ("avroSchema", avro_schema, AVRO),
        ("avroSchemaFile", file_schema, AVRO),
    ):
        if value is not None and name != wanted:
            raise ConfigurationError(
                f"option {option} is for valueFormat={wanted}, and valueFormat is {name}: set "
                f"valueFormat to {wanted}, or leave {option} out"
            )
    if name != AVRO:
        return ValueFormat(name=name, value_type=value_type)
    if avro_schema is not None and file_schema is not None:
        raise ConfigurationError(
            "options avroSchema and avroSchemaFile are both set: leave one of them out"
        )
    text = avro_schema or file_schema
    if text is None:
        raise ConfigurationError(
            "valueFormat=avro needs the schema of the values: set the option avroSchema to its "
            "JSON text, or avroSchemaFile to the path of a file with it"
        )
    try:
        kind = check_avro(text).spark_type
    except ValueError as error:
        option = "avroSchema" if avro_schema is not None else "avroSchemaFile"
        raise ConfigurationError(f"option {option}: {error}") from error
    assert isinstance(kind, spark.StructType)
    return ValueFormat(name=name, value_type=kind, avro_schema=text)


def struct_of_text(text: str) -> spark.StructType:
    """Return the struct that DDL text, or the JSON of a StructType, describes; all of it nullable.

    Raises:
        ValueError: it is malformed, or JSON has no form for a part of it.
    """
    if text.lstrip().startswith("{"):
        try:
            found = spark.StructType.fromJson(json.loads(text))
        except Exception as error:  # Spark raises what it likes
            raise ValueError(f"it is not the JSON of a StructType ({error!r:.200})") from error
    else:
        found = struct_of_ddl(text)
    check_json_type(found, "value")
    nullable = as_nullable(found)
    assert isinstance(nullable, spark.StructType)
    return nullable


def avro_text(text: str) -> str:
    """Return the text of a schema.

    Raises:
        ValueError: it is not one, or not for Spark.
    """
    plan_of(text)
    return text


class _StringDecoder:
    """Decodes bodies to strings."""

    def decode(self, bodies: pa.Array) -> Decoded:
        """Return the strings of a binary array."""
        try:
            return Decoded(bodies.cast(pa.string()))
        except pa.ArrowInvalid:
            pass
        found: list[str | None] = []
        bad = {}
        for place, body in enumerate(bodies.to_pylist()):
            text = None
            try:
                text = None if body is None else body.decode()
            except UnicodeDecodeError as error:
                bad[place] = f"not UTF-8: {error.reason} at byte {error.start}"
            found.append(text)
        return Decoded(pa.array(found, pa.string()), bad)
