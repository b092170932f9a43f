"""Options before the verb, mqadmin's names, profiles, messages as JSON: without a process."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from pymq.cli import arguments, command_line, output, replaying, sending
from pymq.cli.command_line import prepared
from pymq.cli.main import main
from pymq.cli.profiles import Profile, chosen
from pymq.client.sending.send_encoding import encode_batch
from pymq.errors import ConfigurationError, PymqError
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
        ("--namespace shop topic list", "topic list --namespace shop"),
        ("", ""),
        ("--help", "--help"),
        ("tail T -n 3 -n a:1", "tail T --lines 3 -n a:1"),
        ("tail T -n3 -na:1", "tail T --lines=3 -na:1"),
        ("topicList -n a:1", "topic list -n a:1"),
        ("-n a:1 topicRoute -t T", "topic route T -n a:1"),
        (
            "updateTopic -n a:1 -c C -t T -r 8 -w 8 -o true",
            "topic create T --cluster C --queues 8 --order -n a:1",
        ),
        ("updateTopic -t T -o false", "topic create T"),
        (
            "deleteSubGroup -g G -r true",
            "group delete --with-dead-letters G --forget-offsets",
        ),
        ("consumerProgress -g G", "group lag G"),
        ("resetOffsetByTime -g G -t T -s -1", "group reset G --topic T --to latest"),
        ("resetOffsetByTime -g G -t T -s 0 -f true", "group reset G --topic T --to earliest"),
        ("queryMsgByKey -k K -t T", "message find T K"),
        ("sendMessage -t T -p hello -c tag", "send T hello --tags tag"),
    ],
)
def test_arguments_are_put_in_order(given: str, meant: str) -> None:
    assert prepared(given.split()) == meant.split()


#: mqadmin's command with all options of it that are understood -> ours.
MQADMIN = [
    ("topicList -c -n a:1", "topic list -n a:1"),
    ("topicRoute -t T -n a:1", "topic route T -n a:1"),
    ("topicStatus -t T", "topic status T"),
    (
        "updateTopic -t T -c C -r 8 -w 8 -p 6 -o true",
        "topic create T --cluster C --queues 8 --perm 6 --order",
    ),
    ("updateTopic -t T -c C", "topic create T --cluster C"),
    ("updateTopic -t T -c C -r 2 -w 2", "topic create T --cluster C --queues 2"),
    ("updateTopicPerm -t T -p 4 -c C", "topic update T --perm 4 --cluster C"),
    ("deleteTopic -t T -c C", "topic delete T --cluster C"),
    ("updateSubGroup -g G -c C -r 3", "group create G --cluster C --retries 3"),
    (
        "deleteSubGroup -g G -c C -r true",
        "group delete --with-dead-letters G --cluster C --forget-offsets",
    ),
    ("consumerProgress -g G -t T", "group lag G --topic T"),
    ("consumerConnection -g G", "group members G"),
    ("resetOffsetByTime -g G -t T -s now", "group reset G --topic T --to latest"),
    (
        "resetOffsetByTime -g G -t T -s 1700000000123 -f true -b 10.0.0.1:10911 -q 0",
        "group reset G --topic T --to 2023-11-14T22:13:20.123+00:00 --queue 10.0.0.1:10911:0",
    ),
    (
        "resetOffsetByTime -g G -t T -s 2026-01-31#12:00:05:123",
        "group reset G --topic T --to 2026-01-31T12:00:05.123",
    ),
    ("clusterList -c C", "cluster list"),
    ("brokerStatus -b b", "cluster state b"),
    ("deleteExpiredCommitLog -b b -c C", "cluster clean b"),
    ("queryMsgByKey -t T -k K -m 5", "message find T K --count 5"),
    ("queryMsgById -i I -t T", "message show I --topic T"),
    ("queryMsgByUniqueKey -i I -t T", "message show I --topic T"),
    ("queryMsgByOffset -t T -b b -i 2 -o 7", "message at T 7 --queue b:2"),
    (
        "sendMessage -t T -p hello -c tag -k K -b b -i 1",
        "send T hello --tags tag --keys K --queue b:1",
    ),
    ("consumeMessage -t T -g G -c 5", "consume --no-follow T --count 5"),
    (
        "consumeMessage -t T -b b -i 1 -s 1700000000000",
        "consume --no-follow T --queue b:1 --from 2023-11-14T22:13:20.000+00:00",
    ),
    ("consumeMessage -t T -s 0", "consume --no-follow T --from earliest"),
]


@pytest.mark.parametrize(("given", "meant"), MQADMIN)
def test_what_mqadmin_says_is_a_line_of_ours(
    given: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reached(shared: object) -> None:
        raise PymqError("the cluster is asked")

    assert prepared(given.split()) == meant.split()
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    monkeypatch.setattr(arguments.Shared, "admin", reached)
    monkeypatch.setattr(arguments.Shared, "client", reached)
    assert main(given.split()) == 1
    assert capsys.readouterr().err == f"pymq {meant.split()[0]}: the cluster is asked\n"


def test_every_name_of_mqadmin_is_tried() -> None:
    text = (Path(__file__).parents[3] / "docs/commands.md").read_text()
    named = text.partition("The names of `mqadmin`")[2].partition("\n\n")[0]
    assert {line.split()[0] for line, _ in MQADMIN} == set(re.findall("`([a-z]+[A-Z]\\w+)`", named))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("updateTopic -t T -r 2 -w 6", "-r 2 and -w 6: a topic has as many queues to read as"),
        ("updateTopic -t T -w 4", "-r 8 and -w 4"),
        ("resetOffsetByTime -g G -t T -s 0 -b b", "-b b: without -q it chooses nothing"),
        ("resetOffsetByTime -g G -t T -s 0 -f false", "-f false"),
        (f"resetOffsetByTime -g G -t T -s {10**17}", "-s 10+: expected a time"),
        ("sendMessage -t T -p x -b b", "-b b: without -i it chooses nothing"),
        ("consumeMessage -t T -b b", "-b b: without -i it chooses nothing"),
    ],
)
def test_what_we_would_do_otherwise_than_mqadmin_is_refused(
    given: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{given.split()[0]} {why}"):
        prepared(given.split())
    assert main(given.split()) == 2
    assert capsys.readouterr().err.startswith(f"pymq: {given.split()[0]} -")


def test_what_may_stand_before_the_verb_is_what_all_commands_take() -> None:
    options = get_type_hints(arguments.Shared, include_extras=True).values()
    known = {
        name: one.__origin__
        for one in options
        for name in (one.__metadata__[0].default, *one.__metadata__[0].param_decls)
    }
    assert set(command_line.SHARED) == {*known, "-vv"}
    for name, has_value in command_line.SHARED.items():
        assert has_value == (known.get(name) is not int and name != "-vv"), name


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
    file.write_text(FILE, encoding="utf-8-sig")  # as editors of Windows do
    assert chosen(None, {}, tmp_path).name_server == "l:1"
    file.write_text("default =")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        chosen(None, {}, tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        chosen(None, {"PYMQ_CONFIG": str(tmp_path)}, tmp_path)


def test_no_time_at_all_is_not_taken_for_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('default = "l"\n[profiles.l]\ntimeout_s = 0\n')
    monkeypatch.setenv("PYMQ_CONFIG", str(file))
    with pytest.raises(ConfigurationError, match="timeout_s=0: expected seconds, 0 < s"):
        arguments.Shared().admin()
    assert arguments.Shared(given_timeout_s=3.0).timeout_s == 3.0


def test_a_default_profile_that_is_no_name(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for text in ('default = ["x"]', "default = 1", 'default = ["x"]\n[profiles.x]'):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match="default is .*, expected the name"):
            chosen(None, {"PYMQ_CONFIG": str(file)}, tmp_path)


def test_profiles_without_a_home(tmp_path: Path) -> None:
    assert chosen(None, {}, None).name_server == "127.0.0.1:9876"
    assert chosen(None, {"NAMESRV_ADDR": "e:1"}, None).name_server == "e:1"
    with pytest.raises(ConfigurationError, match="no home directory: set HOME .*PYMQ_CONFIG"):
        chosen("far", {}, None)
    file = tmp_path / "pymq/config.toml"
    file.parent.mkdir()
    file.write_text(FILE)
    for where in ({"PYMQ_CONFIG": str(file)}, {"XDG_CONFIG_HOME": str(tmp_path)}):
        assert chosen(None, where, None).name_server == "l:1"


def test_a_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def unknown(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    assert arguments.Shared().name_server == "127.0.0.1:9876"
    for command in ("namesrv", "broker"):
        assert main([command, "-p"]) == 2
        assert f"pymq {command}: this user has no home directory" in capsys.readouterr().err
        file = tmp_path / "conf"
        file.write_text("kvConfigPath=/kv\n" if command == "namesrv" else "storePathRootDir=/s\n")
        assert main([command, "-p", "-c", str(file)]) == 0
        capsys.readouterr()


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
        ('{"topic": "t", "body": "\\ud800"}', "surrogates not allowed"),
        ('{"topic": "t", "body": "x", "tags": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_lines_that_are_no_messages(line: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        replaying.message_of_line(line.encode(), 7, None)


def test_batches_have_one_topic_and_limits() -> None:
    messages = [Message("a", b"x")] * 300 + [Message("b", b"x"), Message("a", b"x" * (1 << 20))]
    found = [[len(group), group[0].topic] for group in replaying.batches(messages)]
    assert found == [[256, "a"], [44, "a"], [1, "b"], [1, "a"]]


def test_what_goes_with_a_body_counts_in_a_batch() -> None:
    large = Message("a", b"x", tags="A", keys=["k"], properties={"p": "é" * 15_000})
    bodies = [[b"x"] * 256]
    for several in (replaying.batches([large] * 256), sending.groups(bodies, lambda _: large)):
        together = list(several)
        assert sum(map(len, together)) == 256
        for one in together:
            assert len(encode_batch(one, map(str, range(256)), 4 << 20).body) <= 1 << 20
    odd = Message("a", b"x", tags=5, keys=6, properties={"p": None})  # type: ignore[arg-type, dict-item]
    assert len(next(replaying.batches([odd] * 2))) == 2  # the client says what is wrong with it


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
    text = "{properties}|{properties[own]:>3}|{offset:05d}|{id!r}|{body:{queue}}|"
    output.message_printer(output.Form.TEXT, body_only=False, template=text)(received())
    whole, *rest = capsys.readouterr().out.split("|")
    assert json.loads(whole) == received().properties
    assert rest == ["  1", "00017", "'id'", "hello", ""]
    output.message_printer(output.Form.TEXT, body_only=False, template="{keys:>4}{tags:>3}|")(
        replace(received(), properties={})
    )
    assert capsys.readouterr().out == "       |"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("{nope}", "there is no {nope}, only topic"), ("{", "--format '{'"), ("{}", "there is no {}")]
    + [
        (one, "expected a format such as")
        for one in ("{offset:s}", "{body:10d}", "{stored:%Y}", "{body[x]}", "{body[0]}", "{body!x}")
    ]
    + [(one, "expected a format such as") for one in ("{body:{width}}", "{offset:c}", "{queue[0]}")]
    + [(one, "expected a format such as") for one in ("{properties[a][0]}", "{properties:d}")],
)
def test_format_strings_that_no_message_can_have(wrong: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        output.message_printer(output.Form.TEXT, body_only=False, template=wrong)
