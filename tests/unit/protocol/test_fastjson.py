"""The fastjson dialect: what Java writes, what we write, and texts that are neither."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.fastjson import (
    DEPTH_MAX,
    ObjectMap,
    dump,
    dump_pretty,
    object_pairs,
    parse,
)

QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "TopicA"}

# (value, text): the text reads as the value, and the value is written as the text.
BOTH_WAYS: list[tuple[Any, bytes]] = [
    ({}, b"{}"),
    ([], b"[]"),
    (None, b"null"),
    ("", b'""'),
    (0.0, b"0.0"),
    ((1 << 63) - 1, b"9223372036854775807"),
    ({"a": [1, -2, 0.5, True, False, None, "x"]}, b'{"a":[1,-2,0.5,true,false,null,"x"]}'),
    ({"名": "标签😀"}, '{"名":"标签😀"}'.encode()),
    ({"a": '"\\\n\x01'}, b'{"a":"\\"\\\\\\n\\u0001"}'),
    (
        ObjectMap([(QUEUE, {"n": 5})]),
        b'{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:{"n":5}}',
    ),
    (
        {"offsetTable": ObjectMap([({"a": 1}, 1), ({"a": 2}, [{}]), ({}, {"0": "x"})])},
        b'{"offsetTable":{{"a":1}:1,{"a":2}:[{}],{}:{"0":"x"}}}',
    ),
    (ObjectMap([({"k": ObjectMap([({}, 1)])}, "\u2028é")]), '{{"k":{{}:1}}:"\u2028é"}'.encode()),
]


@pytest.mark.parametrize(("value", "text"), BOTH_WAYS)
class TestBothWays:
    def test_parse(self, value: Any, text: bytes) -> None:
        assert parse(text) == value
        assert parse(text.decode()) == value
        assert parse(memoryview(text)) == value

    def test_dump(self, value: Any, text: bytes) -> None:
        assert dump(value) == text

    def test_truncated_or_with_more_behind_is_refused(self, value: Any, text: bytes) -> None:
        for end in range(len(text)):
            if text[:end].isdigit() or text[:end] in (b"0.", b"0"):
                continue  # the beginning of a number may be a number
            with pytest.raises(RemoteProtocolError):
                parse(text[:end])
        with pytest.raises(RemoteProtocolError):
            parse(text + b" x")
        assert parse(b" \r\n\t" + text + b"\n") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ('{"x":{-1:1}, "y":[{2:{}}]}', {"x": {"-1": 1}, "y": [{"2": {}}]}),
        # consumerOffset.json as 4.9.8 prints it
        (
            '{\n\t"offsetTable":{\n\t\t"%RETRY%CG@CG":{0:0\n\t\t},\n\t\t"TopicTest@CG":'
            "{0:8,1:9\n\t\t}\n\t}\n}",
            {"offsetTable": {"%RETRY%CG@CG": {"0": 0}, "TopicTest@CG": {"0": 8, "1": 9}}},
        ),
        ('{ {"a" : 1} : 2 , "b" : 3 }', ObjectMap([({"a": 1}, 2), ("b", 3)])),
        ('{{"a":"\\u6807\\"}"}:"{"}', ObjectMap([({"a": '标"}'}, "{")])),
        ('{0:"a",0:"b"}', {"0": "b"}),
    ],
)
def test_dialect(text: str, value: Any) -> None:
    assert parse(text) == value


def test_integer_keys_are_written_quoted() -> None:
    assert dump({0: "a", 1: {2: 3}}) == b'{"0":"a","1":{"2":3}}'
    assert dump(ObjectMap([({0: 1}, {7: 8})])) == b'{{"0":1}:{"7":8}}'
    assert dump({True: 1, "x": ObjectMap([])}) == b'{"true":1,"x":{}}'


class TestReferences:
    def test_to_a_shared_key(self) -> None:
        """Seen in ConsumerRunningInfo, where two maps share a queue."""
        value = parse(
            b'{"mqPopTable":{{"queueId":0,"topic":"T"}:{"n":1}},'
            b'"mqTable":{{"$ref":"$.mqPopTable.null"}:{"m":2}}}'
        )
        assert value["mqTable"] == ObjectMap([({"queueId": 0, "topic": "T"}, {"m": 2})])

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"a":{"b":{"x":1}},"c":{"$ref":"$.a.b"}}', {"x": 1}),
            ('{"a":[{"x":1}],"c":{"$ref":"$.a[0]"}}', {"x": 1}),
            ('{"a":[[{"x":1}]],"c":{"$ref":"$.a[0][0]"}}', {"x": 1}),
            ('{"a":[1],"c":{"$ref":"$.a"}}', [1]),
            ('{"a":{"x":1},"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}', {"x": 1}),
            ('{"a":{"0":{"x":1}},"c":{"$ref":"$.a.0"}}', {"x": 1}),
        ],
    )
    def test_to_something_in_front(self, text: str, expected: Any) -> None:
        assert parse(text)["c"] == expected

    @pytest.mark.parametrize(
        "path",
        ["$", "@", "..", "$.c", "$.d", "$.a[9]", "$.a[x]", "$.x.y", "a", "", "$.a.0", "$..a"],
    )
    def test_others_stay_as_they_are(self, path: str) -> None:
        value = parse(json.dumps({"a": [{}], "x": 1, "c": {"$ref": path}, "d": {}}))
        assert value["c"] == {"$ref": path}
        assert parse(dump(value)) == value  # and nothing contains itself

    def test_ambiguous_key_stays(self) -> None:
        value = parse('{"a":{{"x":1}:1,{"x":2}:2},"b":{{"$ref":"$.a.null"}:3}}')
        assert value["b"] == ObjectMap([({"$ref": "$.a.null"}, 3)])

    def test_no_reference_makes_a_cycle(self) -> None:
        value = parse('{"a":{"x":{"$ref":"$.b"}},"b":{"y":{"$ref":"$.a"},"z":{"$ref":".."}}}')
        assert value["b"]["y"] == {"x": {"$ref": "$.b"}}
        dump(value)

    def test_not_a_reference(self) -> None:
        for text in ('{"$ref":7}', '{"$ref":"$.a","b":1}', '["$ref"]'):
            assert parse(text) == json.loads(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', "{0:", "{{", "[{0:[", '{"a":{0:'])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 100_000])
def test_deep_nesting_is_refused(opening: str, depth: int) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(opening * depth)


def test_nesting_up_to_the_limit() -> None:
    value = parse("{0:" * DEPTH_MAX + "1" + "}" * DEPTH_MAX)
    for _ in range(DEPTH_MAX):
        value = value["0"]
    assert value == 1
    with pytest.raises(RemoteProtocolError, match=f"at most {DEPTH_MAX} levels"):
        parse("{0:" * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1))


@pytest.mark.parametrize(("opening", "ending"), [("[", "]"), ("{0:", "}")])
def test_what_only_pythons_recursion_ends_is_not_said_to_be_a_limit(
    opening: str, ending: str
) -> None:
    with pytest.raises(RemoteProtocolError, match="characters: nested too deep$"):
        parse(opening * 50_000 + "1" + ending * 50_000, depth_max=100_000)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 500, 2_000, 50_000])
@pytest.mark.parametrize(
    ("opening", "ending"), [("[", "]"), ('{"a":1,"b":', "}"), ('["[",{"[":[],"a":', "}]")]
)
def test_deep_plain_json_is_refused(opening: str, ending: str, depth: int, closed: bool) -> None:
    text = opening * depth + "0"
    if closed:
        text += ending * depth
    for whole in (text, '[{"$ref":"@"},' + text + "]"):
        with pytest.raises(RemoteProtocolError, match="nested too deep$|cannot be read"):
            parse(whole)


def test_plain_json_up_to_the_limit() -> None:
    for opening, ending in (("[", "]"), ('{"a":', "}")):
        text = opening * DEPTH_MAX + "0" + ending * DEPTH_MAX
        assert parse(text) == json.loads(text)
        with pytest.raises(RemoteProtocolError, match=f"at most {DEPTH_MAX} levels"):
            parse(opening + text + ending)
        with pytest.raises(RemoteProtocolError, match="at most 99 levels$"):
            parse(text, depth_max=DEPTH_MAX - 1)
        assert parse(opening + text + ending, depth_max=DEPTH_MAX + 1)
    many = "[" + ",".join(['{"a":[{}]}'] * 1000) + "]"
    assert parse(many) == json.loads(many)
    brackets = json.dumps(["[" * 1000, {"{" * 1000: "["}])
    assert parse(brackets) == json.loads(brackets)


def test_references_make_nothing_deeper_than_the_limit() -> None:
    half = "[" * 60 + "]" * 60
    with pytest.raises(RemoteProtocolError, match=f"at most {DEPTH_MAX} levels"):
        parse('{"a":' + half + ',"b":' + "[" * 60 + '{"$ref":"$.a"}' + "]" * 60 + "}")
    assert parse('{"a":' + half + ',"b":' + "[" * 30 + '{"$ref":"$.a"}' + "]" * 30 + "}")


def test_references_make_nothing_much_larger_than_the_text() -> None:
    """A few hundred bytes would be a value that no memory holds once it is written out."""
    levels = ['"a0":[0,0]']
    for level in range(1, 40):
        levels.append(f'"a{level}":[' + ",".join([f'{{"$ref":"$.a{level - 1}"}}'] * 2) + "]")
    with pytest.raises(RemoteProtocolError, match="EXPANDED_MAX"):
        parse("{" + ",".join(levels) + "}")
    few = parse("{" + ",".join(levels[:10]) + "}")
    assert len(dump(few["a9"])) > 1024


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{a:1}",
        b"{0:}",
        b"{0 1}",
        b"{0:1,}",
        b"{0:1]",
        b"{:1}",
        b"{1.5:1}",
        b"{[]:1}",
        b"{0:nul}",
        b'{0:"a}',
        b'{0:"\\x"}',
        b'{0:"a\nb"}',
        b"{0:1}{",
        b"[1 2]",
        b"{0:1,1:[}",
        b"{00000000000000000000000:1}",
        b"\xff",
        b"{0:" + b"9" * 5_000 + b"}",
        b"9" * 5_000,
    ],
)
def test_texts_that_are_none(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": {1, 2}},
        b"x",
        float("nan"),
        ObjectMap([({}, object())]),
        {(1, 2): 3},
    ],
)
def test_values_without_a_form(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        dump(value)


def test_half_a_surrogate_pair_is_escaped() -> None:
    value = {"a\ud800": ["\udfffé", "\U0001f600"]}
    text = '{"a\\ud800":["\\udfffé","\U0001f600"]}'
    assert dump(value) == text.encode()
    assert (
        dump_pretty(value).split()
        == text.replace("[", "[ ")
        .replace(",", ", ")
        .replace("]", " ]")
        .replace("{", "{ ")
        .replace("}", " }")
        .split()
    )
    assert parse(dump(value)) == parse(dump_pretty(value)) == value
    assert parse(dump(ObjectMap([({}, "\ud800")]))) == ObjectMap([({}, "\ud800")])


def test_dump_of_a_cycle() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (cycle, [ObjectMap([]), cycle]):
        with pytest.raises(LocalProtocolError):
            dump(value)


def test_pretty_is_how_state_files_look() -> None:
    assert dump_pretty({"offsetTable": {}}) == '{\n\t"offsetTable":{}\n}'
    assert dump_pretty({"a": {0: [1]}, "b": "é"}) == (
        '{\n\t"a":{\n\t\t"0":[\n\t\t\t1\n\t\t]\n\t},\n\t"b":"é"\n}'
    )
    with pytest.raises(LocalProtocolError):
        dump_pretty({"a": object()})


def test_object_pairs() -> None:
    assert list(object_pairs(ObjectMap([(QUEUE, 1)]))) == [(QUEUE, 1)]
    assert list(object_pairs({})) == []
    assert list(object_pairs({json.dumps(QUEUE): 1})) == [(QUEUE, 1)]
    for value in ([], None, 7, {"no object": 1}):
        with pytest.raises(RemoteProtocolError):
            list(object_pairs(value))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
scalars = scalars.filter(lambda value: value not in (float("inf"), float("-inf")))
plain_objects = st.dictionaries(texts.filter(lambda name: name != "$ref"), scalars, max_size=3)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts.filter(lambda name: name != "$ref"), inner, max_size=3)
        | st.lists(st.tuples(plain_objects, inner), min_size=1, max_size=3).map(ObjectMap)
    ),
    max_leaves=12,
)


@given(values)
def test_round_trip(value: Any) -> None:
    assert parse(dump(value)) == value


@given(st.dictionaries(texts, st.dictionaries(st.integers(), st.integers(), max_size=3)))
def test_pretty_round_trip(value: dict[str, dict[int, int]]) -> None:
    back = parse(dump_pretty(value))
    assert {name: {int(k): v for k, v in m.items()} for name, m in back.items()} == value


@given(st.binary(max_size=60) | st.text('{}[]",:0123456789-.$refnul@ \\tae', max_size=60))
def test_random_texts_raise_only_our_error(text: bytes | str) -> None:
    try:
        parse(text)
    except RemoteProtocolError:
        pass


def test_damaged_texts_raise_only_our_error(seed: int) -> None:
    chance = random.Random(seed)
    original = (
        b'{"mqPopTable":{{"queueId":0,"topic":"T"}:{"n":1}},"a":[{0:1,1:[]}],'
        b'"mqTable":{{"$ref":"$.mqPopTable.null"}:{"$ref":"$.a[0]"}}}'
    )
    for _ in range(10_000):
        damaged = bytearray(original)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b'{}[]",:019-.$@ \\\xff')
        try:
            dump(parse(bytes(damaged)))
        except (RemoteProtocolError, LocalProtocolError):
            pass
