"""Options before the verb, mqadmin's names, profiles, messages as JSON: without a process."""

import json
from pathlib import Path
from typing import Any

import pytest

from pymq.cli import output, replaying
from pymq.cli.command_line import prepared
from pymq.cli.profiles import Profile, chosen
from pymq.errors import ConfigurationError
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import pack_host

HOST = pack_host("127.0.0.1", 10911)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("topic list -n a:1", "topic list -n a:1"),
        ("-n a:1 -o json topic list", "topic list -n a:1 -o json"),
        ("--output=json -v topic list", "topic list --output=json -v"),
        ("-n a:1 send T -- -x", "send T -n a:1 -- -x"),
        ("-n a:1", "-n a:1"),
        ("", ""),
        ("--help", "--help"),
        ("tail T -n 3 -n a:1", "tail T --lines 3 -n a:1"),
        ("topicList -n a:1", "topic list -n a:1"),
        ("-n a:1 topicRoute -t T", "topic route T -n a:1"),
        (
            "updateTopic -n a:1 -c C -t T -r 8 -w 8 -o true",
            "topic create T -n a:1 --cluster C --queues 8 --order",
        ),
        ("updateTopic -t T -o false", "topic create T"),
        ("deleteSubGroup -g G -r true", "group delete G --forget-offsets"),
        ("consumerProgress -g G", "group lag G"),
        ("resetOffsetByTime -g G -t T -s -1", "group reset G --topic T --to latest"),
        ("resetOffsetByTime -g G -t T -s 0 -f true", "group reset G --topic T --to earliest"),
        ("queryMsgByKey -k K -t T", "message find T K"),
        ("queryMsgByOffset -t T -b b -i 2 -o 7", "message at T 7 -b b --queue 2"),
        ("sendMessage -t T -p hello -c tag", "send T hello --tags tag"),
    ],
)
def test_arguments_are_put_in_order(given: str, meant: str) -> None:
    assert prepared(given.split()) == meant.split()


FILE = """
default = "local"
[profiles.local]
name_server = "l:1"
[profiles.far]
name_server = "f:1;f:2"
timeout_s = 20
broker_address_map = { "10.0.0.1" = "127.0.0.1" }
[profiles.wrong]
adress = "x"
[profiles.typed]
timeout_s = "long"
"""


def test_the_profile_that_counts(tmp_path: Path) -> None:
    assert chosen(None, {}, tmp_path).name_server == "127.0.0.1:9876"
    assert chosen(None, {"NAMESRV_ADDR": "e:1"}, tmp_path).name_server == "e:1"
    with pytest.raises(ConfigurationError, match="profile 'far': there is no .*config.toml"):
        chosen("far", {}, tmp_path)
    file = tmp_path / ".config/pymq/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    assert chosen(None, {}, tmp_path).name_server == "l:1"
    assert chosen(None, {"NAMESRV_ADDR": "e:1"}, tmp_path).name_server == "e:1"
    far = Profile(
        name_server="f:1;f:2", timeout_s=20, broker_address_map={"10.0.0.1": "127.0.0.1"}
    )
    assert chosen("far", {"NAMESRV_ADDR": "e:1"}, tmp_path) == far
    assert chosen(None, {"PYMQ_PROFILE": "far", "NAMESRV_ADDR": "e:1"}, tmp_path) == far
    elsewhere = {"PYMQ_CONFIG": str(file)}
    assert chosen("far", elsewhere, tmp_path / "nowhere") == far
    for name, wrong in (
        ("none", "has no profile 'none', only: far, local, typed, wrong"),
        ("wrong", "has 'adress', expected name_server, timeout_s"),
        ("typed", "timeout_s of profile 'typed' is 'long'"),
    ):
        with pytest.raises(ConfigurationError, match=wrong):
            chosen(name, {}, tmp_path)
    file.write_text("default =")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        chosen(None, {}, tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        chosen(None, {"PYMQ_CONFIG": str(tmp_path)}, tmp_path)


def received(body: bytes = b"hello") -> ReceivedMessage:
    properties = {"KEYS": "k1 k2", "UNIQ_KEY": "id", "TAGS": "A", "own": "1", "RETRY_TOPIC": "T"}
    return ReceivedMessage("t", body, properties, "broker-a", 3, 17, 1000, 5, 7, HOST, HOST)


@pytest.mark.parametrize("body", [b"hello", b"\xff\x00", "ä".encode()])
def test_what_was_printed_can_be_sent_again(body: bytes) -> None:
    line = json.dumps(output.message_row(received(body))).encode()
    expected = Message("t", body, tags="A", keys=["k1", "k2"], properties={"own": "1"})
    assert replaying.message_of_line(line, 1, None) == expected
    assert replaying.message_of_line(line, 1, "other").topic == "other"
    assert replaying.message_of(received(body), "t") == expected


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("nope", "line 7 of the JSON is not an object of one line"),
        ("[1]", "line 7 of the JSON is not an object"),
        ('{"topic": "t"}', "neither a body nor a bodyBase64"),
        ('{"topic": "t", "bodyBase64": "§"}', "neither a body nor a bodyBase64"),
        ('{"body": "x"}', "give TOPIC where the lines have none"),
        ('{"topic": "t", "body": "x", "properties": {"a": 1}}', "properties that are strings"),
    ],
)
def test_lines_that_are_no_messages(line: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        replaying.message_of_line(line.encode(), 7, None)


def test_batches_have_one_topic_and_limits() -> None:
    messages = [Message("a", b"x")] * 300 + [Message("b", b"x"), Message("a", b"x" * (1 << 20))]
    found = [[len(group), group[0].topic] for group in replaying.batches(messages)]
    assert found == [[256, "a"], [44, "a"], [1, "b"], [1, "a"]]


def test_bodies_only_means_bodies_only(capfdbinary: Any) -> None:
    output.message_printer(output.Form.TEXT, body_only=True)(received(b"\xff\x00"))
    assert capfdbinary.readouterr().out == b"\xff\x00\n"
    for form, template in ((output.Form.JSON, None), (output.Form.TEXT, "{id}")):
        with pytest.raises(ConfigurationError, match="--body-only"):
            output.message_printer(form, body_only=True, template=template)


def test_format_strings(capsys: Any) -> None:
    text = r"{queue}@{offset}\t{tags} {keys} {properties[own]}{properties[none]} {body}\n"
    output.message_printer(output.Form.TEXT, body_only=False, template=text)(received())
    assert capsys.readouterr().out == "3@17\tA k1 k2 1 hello\n"
    for wrong, why in (("{nope}", "there is no {nope}, only topic"), ("{", "--format '{'")):
        with pytest.raises(ConfigurationError, match=why):
            output.message_printer(output.Form.TEXT, body_only=False, template=wrong)
