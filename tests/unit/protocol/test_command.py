"""Headers of commands in both forms, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.command import Command, HeaderForm, decode_header, encode_header

BINARY = HeaderForm.BINARY


def test_json_text_is_what_java_writes() -> None:
    command = Command(17, remark="No topic", opaque=7, flag=1, language=0)
    text = (
        b'{"code":17,"flag":1,"language":"JAVA","opaque":7,"remark":"No topic",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert encode_header(command) == text
    assert decode_header(0, text, b"") == command


def test_unicode_in_both_forms() -> None:
    for form in HeaderForm:
        command = Command(0, {"i": "标签\x01\x02😀"}, remark="ü", form=form)
        assert decode_header(form, encode_header(command), b"") == command


def test_json_takes_what_other_clients_send() -> None:
    found = decode_header(
        0,
        b' {"code": 10, "extFields": {"a": 1, "b": true, "c": null, "d": 1.5, "e": "x"},'
        b' "language": "KLINGON", "unknown": [1]} ',
        b"body",
    )
    assert found.fields == {"a": "1", "b": "true", "d": "1.5", "e": "x"}
    assert (found.code, found.opaque, found.flag, found.version) == (10, 0, 0, 0)
    assert found.language == 7
    assert found.body == b"body"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"code":"10"}',
        b'{"code":true}',
        b'{"code":1.0}',
        b'{"code":1,"opaque":"7"}',
        b'{"code":1,"opaque":null}',
        b'{"code":1,"flag":{}}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":"x"}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"extFields":{"a":[1]}}',
        b'{"code":1,"remark":7}',
        b'{"code":1} x',
        b'\xff\xfe{"code":1}',
        b'{"code":1,"remark":"\xff"}',
        b"[" * 100_000,
        b'{"code":' + b"1" * 5_000 + b"}",
    ],
)
def test_json_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_header(0, header, b"")


def test_binary_keeps_the_low_16_bits_of_a_code() -> None:
    raw = encode_header(Command(200050, form=BINARY))
    assert decode_header(1, raw, b"").code == 200050 - 3 * 65536
    raw = encode_header(Command(-1, form=BINARY))
    assert decode_header(1, raw, b"").code == -1


def test_every_truncation_of_a_binary_header_is_refused() -> None:
    raw = encode_header(Command(10, {"a": "x", "bb": ""}, remark="why", form=BINARY))
    for size in range(len(raw)):
        with pytest.raises(RemoteProtocolError):
            decode_header(1, raw[:size], b"")


@pytest.mark.parametrize(
    "fields",
    [
        "0005 6162",  # key runs past the end
        "ffff 61",
        "0001 61 00000002 78",  # value does
        "0001 61 ffffffff 78",
        "0001 61 000000",
        "0001 ff 00000001 78",  # not UTF-8
    ],
)
def test_binary_fields_that_are_none(fields: str) -> None:
    entries = bytes.fromhex(fields)
    head = bytes.fromhex("0000 00 01df 00000008 00000001 00000000")
    raw = head + len(entries).to_bytes(4, "big") + entries
    with pytest.raises(RemoteProtocolError):
        decode_header(1, raw, b"")


@pytest.mark.parametrize("form", [-1, 2, 255])
def test_unknown_form(form: int) -> None:
    with pytest.raises(RemoteProtocolError, match="serialization"):
        decode_header(form, b"{}", b"")


@pytest.mark.parametrize("form", HeaderForm)
@pytest.mark.parametrize(
    "command",
    [Command(1, remark="\ud800"), Command(1, {"a": "\udfff"}), Command(1, {"\ud800": "a"})],
)
def test_text_that_is_no_unicode_cannot_be_sent(command: Command, form: HeaderForm) -> None:
    command.form = form
    with pytest.raises(LocalProtocolError):
        encode_header(command)


@pytest.mark.parametrize(
    "command",
    [Command(1, opaque=1 << 31), Command(1, version=1 << 15), Command(1, {"k" * 40_000: "v"})],
)
def test_numbers_and_names_too_large_for_binary(command: Command) -> None:
    command.form = BINARY
    with pytest.raises(LocalProtocolError):
        encode_header(command)


@given(st.sampled_from([0, 1]), st.binary(max_size=120))
def test_random_headers_raise_only_our_error(form: int, header: bytes) -> None:
    try:
        decode_header(form, header, b"")
    except RemoteProtocolError:
        pass


LONG = 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":"' + b"\x7f" * LONG + b'"}',
        b'{"code":[' + b'"x",' * LONG + b"0]}",
        b'{"code":0,"opaque":{"' + b"\x7f" * LONG + b'":0}}',
        b'{"code":0,"flag":"' + b"\x7f" * LONG + b'"}',
        b'{"code":0,"version":"' + b"\x7f" * LONG + b'"}',
        b'{"code":0,"remark":["' + b"\x7f" * LONG + b'"]}',
        b'{"code":0,"extFields":{"' + b"\x7f" * LONG + b'":[]}}',
        b"\xff" * LONG,
    ],
    ids=lambda header: str(header[:24]),
)
def test_what_is_said_of_a_header_does_not_grow_with_it(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_header(0, header, b"")
    assert len(str(caught.value)) < 500
