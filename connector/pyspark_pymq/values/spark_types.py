"""Spark types: what they are in Arrow, and which fit which."""

import pyarrow as pa
from pyspark.sql import types as spark

_SIMPLE: dict[type[spark.DataType], pa.DataType] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.NullType: pa.null(),
}


def arrow_type(given: spark.DataType) -> pa.DataType:
    """Return the Arrow type that Spark compares with, the same nullability inside.

    Raises:
        TypeError: of a type without one here, such as an interval.
    """
    match given:
        case spark.StructType():
            return pa.struct(
                [pa.field(f.name, arrow_type(f.dataType), f.nullable) for f in given.fields]
            )
        case spark.ArrayType():
            element = arrow_type(given.elementType)
            return pa.list_(pa.field("element", element, given.containsNull))
        case spark.MapType():
            value = pa.field("value", arrow_type(given.valueType), given.valueContainsNull)
            return pa.map_(pa.field("key", arrow_type(given.keyType), False), value)
        case spark.DecimalType():
            return pa.decimal128(given.precision, given.scale)
    found = _SIMPLE.get(type(given))
    if found is None:
        raise TypeError(f"type {given.simpleString()} is not supported")
    return found


def as_nullable(given: spark.DataType) -> spark.DataType:
    """Return a type in which everything may be null, but for keys of maps."""
    match given:
        case spark.StructType():
            return spark.StructType(
                [spark.StructField(f.name, as_nullable(f.dataType)) for f in given.fields]
            )
        case spark.ArrayType():
            return spark.ArrayType(as_nullable(given.elementType))
        case spark.MapType():
            return spark.MapType(as_nullable(given.keyType), as_nullable(given.valueType))
    return given


def misfit(
    given: spark.DataType, filled: spark.DataType, path: str, *, any_order: bool = False
) -> str | None:
    """Return why a column of one type cannot take values of another; None: it can.

    Args:
        given: the type of the column.
        filled: of the values.
        path: name of the column.
        any_order: fields of structs are found by their names, and nulls are looked for in each
            value.
    """
    match given, filled:
        case spark.StructType(), spark.StructType():
            names, wanted = given.fieldNames(), filled.fieldNames()
            if sorted(names) != sorted(wanted) or (names != wanted and not any_order):
                return f"{path} has the fields {_listed(names)}, expected {_listed(wanted)}"
            pairs = [(field, filled[field.name]) for field in given.fields]
            for field, other in pairs:
                where = f"{path}.{field.name}"
                found = misfit(field.dataType, other.dataType, where, any_order=any_order)
                if found is None and other.nullable and not (field.nullable or any_order):
                    found = f"{where} is NOT NULL, but values without it are possible"
                if found is not None:
                    return found
            return None
        case spark.ArrayType(), spark.ArrayType():
            if filled.containsNull and not (given.containsNull or any_order):
                return f"{path} takes no nulls in its arrays, but they are possible"
            where = f"{path}.element"
            return misfit(given.elementType, filled.elementType, where, any_order=any_order)
        case spark.MapType(), spark.MapType():
            if filled.valueContainsNull and not (given.valueContainsNull or any_order):
                return f"{path} takes no nulls in its maps, but they are possible"
            found = misfit(given.keyType, filled.keyType, f"{path}.key", any_order=any_order)
            where = f"{path}.value"
            return found or misfit(given.valueType, filled.valueType, where, any_order=any_order)
    if given.simpleString() == filled.simpleString():
        return None
    return f"{path} is {given.simpleString()}, expected {filled.simpleString()}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
