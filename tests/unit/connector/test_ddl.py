"""Spark's DDL text without Spark's JVM."""

import pytest
from pyspark.sql import types as spark

from pyspark_pymq.values.ddl import struct_of_ddl
from pyspark_pymq.values.formats import struct_of_text


@pytest.mark.parametrize(
    ("text", "string"),
    [
        ("id bigint", "struct<id:bigint>"),
        (" id: BIGINT ,name  String ", "struct<id:bigint,name:string>"),
        ("a decimal, b decimal(5), c DEC(38, 38)", None),
        ("a array<struct<b: map<string, double>, c timestamp_ntz>>", None),
        ("`odd ``name` date COMMENT 'it''s' , z int comment \"x\"", None),
        ("struct<a int>", "struct<a:int>"),
        ("struct int", "struct<struct:int>"),
        ("array array<array<int>>, map string", "struct<array:array<array<int>>,map:string>"),
        ("a long, b short, c byte, d real, e boolean, f binary", None),
    ],
)
def test_types(text: str, string: str | None) -> None:
    found = struct_of_ddl(text)
    if string is not None:
        assert found.simpleString() == string
    assert all(field.nullable for field in found.fields)
    assert struct_of_text(found.json()) == found  # as a user may give it, too


def test_names_and_digits() -> None:
    found = struct_of_ddl("`odd ``name` decimal, b decimal(5), c DEC(38, 38)")
    assert found.fieldNames() == ["odd `name", "b", "c"]
    kinds = [field.dataType for field in found.fields]
    assert kinds == [spark.DecimalType(10, 0), spark.DecimalType(5, 0), spark.DecimalType(38, 38)]


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("", "it ends too soon: expected a name"),
        ("id", "it ends too soon: expected a type: boolean, tinyint"),
        ("id biging", "at 'biging': expected a type"),
        ("id int name string", "at 'name string': expected the end"),
        ("id int,", "it ends too soon"),
        ("id array<int", "it ends too soon: expected >"),
        ("id map<int>", "at '>': expected ,"),
        ("id decimal(39)", "expected a number of digits, 1..38"),
        ("id decimal(5,6)", "expected a number of digits, 0..5"),
        ("id int NOT NULL", "field id is NOT NULL"),
        ("id int; drop", "at '; drop'"),
        ("id int comment x", "a comment in quotes"),
        ("m map<int,int>", "keys of JSON objects are strings"),
        ("a int, a string", "value has two fields a"),
        ("s struct<>", "expected a name"),
        ('{"type": "array"}', "not the JSON of a StructType"),
        ("{", "not the JSON of a StructType"),
        ('{"type":"struct","fields":[]}', "a struct without fields"),
    ],
)
def test_texts_that_are_wrong(text: str, piece: str) -> None:
    with pytest.raises(ValueError) as caught:
        struct_of_text(text)
    assert piece in str(caught.value)


def test_the_json_of_a_type_becomes_nullable() -> None:
    strict = spark.StructType().add("a", spark.ArrayType(spark.IntegerType(), False), False)
    assert struct_of_text(strict.json()) == struct_of_ddl("a array<int>")
