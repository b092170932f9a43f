"""Arguments before they are parsed: options before the verb, and the names that mqadmin has."""

from collections.abc import Mapping, Sequence

from pymq.errors import ConfigurationError

#: Options of every command, and whether a value follows.
SHARED = {
    "--name-server": True,
    "-n": True,
    "--profile": True,
    "--output": True,
    "-o": True,
    "--timeout": True,
    "--map": True,
    "--namespace": True,
    "--verbose": False,
    "-v": False,
    "-vv": False,
    "--quiet": False,
    "-q": False,
}

#: What becomes of mqadmin's options that have no option here: those that have no value and are not
#: needed, and the broker's part of ``--queue``.
_FLAG, _BROKER = "flag", "broker"
#: Queues to read, and to write, where ``updateTopic`` does not say how many.
_MQADMIN_QUEUES = "8"
#: mqadmin's name -> our verb; the options of mqadmin that are arguments here, in our order; what
#: other options are called here (``None``: not needed here, with its value).
_MQADMIN: dict[str, tuple[str, str, dict[str, str | None]]] = {
    "topicList": ("topic list", "", {"-c": _FLAG}),
    "topicRoute": ("topic route", "-t", {}),
    "topicStatus": ("topic status", "-t", {}),
    "updateTopic": (
        "topic create",
        "-t",
        {"-c": "--cluster", "-r": "--queues", "-w": None, "-p": "--perm", "-o": "--order"},
    ),
    "updateTopicPerm": ("topic update", "-t", {"-p": "--perm", "-c": "--cluster"}),
    "deleteTopic": ("topic delete", "-t", {"-c": "--cluster"}),
    "updateSubGroup": ("group create", "-g", {"-c": "--cluster", "-r": "--retries"}),
    "deleteSubGroup": (
        "group delete --with-dead-letters",
        "-g",
        {"-c": "--cluster", "-r": "--forget-offsets"},
    ),
    "consumerProgress": ("group lag", "-g", {"-t": "--topic"}),
    "consumerConnection": ("group members", "-g", {}),
    "resetOffsetByTime": (
        "group reset",
        "-g",
        {"-t": "--topic", "-s": "--to", "-f": None, "-q": "--queue", "-b": _BROKER},
    ),
    "clusterList": ("cluster list", "", {"-c": None}),
    "brokerStatus": ("cluster state", "-b", {}),
    "deleteExpiredCommitLog": ("cluster clean", "-b", {"-c": None}),
    "queryMsgByKey": ("message find", "-t -k", {"-c": "--count", "-m": "--count"}),
    "queryMsgById": ("message show", "-i", {"-t": "--topic"}),
    "queryMsgByUniqueKey": ("message show", "-i", {"-t": "--topic"}),
    "queryMsgByOffset": ("message at", "-t -o", {"-i": "--queue", "-b": _BROKER}),
    "sendMessage": (
        "send",
        "-t -p",
        {"-c": "--tags", "-k": "--keys", "-i": "--queue", "-b": _BROKER},
    ),
    # Its group only gives the pulls a name: it commits nothing.
    "consumeMessage": (
        "consume --no-follow",
        "-t",
        {"-g": None, "-c": "--count", "-i": "--queue", "-b": _BROKER, "-s": "--from"},
    ),
}


def prepared(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the verb first, under our name.

    Options that all commands share may stand before the verb. The names of mqadmin's commands,
    with its options, are understood where there is a command of ours that does the same.

    Raises:
        ConfigurationError: mqadmin would do what no command of ours does.
    """
    leading, rest = _split(list(arguments))
    if rest[:1] == ["tail"]:
        rest = [
            _lines(one, rest[at + 1] if at + 1 < len(rest) else "") for at, one in enumerate(rest)
        ]
    if rest and rest[0] in _MQADMIN:
        rest = _translated(rest[0], rest[1:])
    if not leading:
        return rest
    if not rest:
        return leading
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *leading, *rest[end:]]


def _lines(option: str, following: str) -> str:
    """Return ``-n 3`` and ``-n3`` as what the tail of other systems means by them."""
    if option == "-n" and following.isdigit():
        return "--lines"
    name, number = option[:2], option[2:]
    return f"--lines={number}" if name == "-n" and number.isdigit() else option


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the shared options before the verb, and the rest."""
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        if name not in SHARED:
            break
        at += 2 if SHARED[name] and not equals else 1
    return arguments[:at], arguments[at:]


def _translated(name: str, options: list[str]) -> list[str]:
    """Return what mqadmin's command is here."""
    verb, arguments, renamed = _MQADMIN[name]
    given, unknown = _taken_apart(options, renamed, arguments.split())
    _refuse_other(name, given, renamed)
    broker = given.get("-b", "") if renamed.get("-b") == _BROKER else ""
    rest: list[str] = []
    for option, value in given.items():
        ours = renamed.get(option)
        if ours == "--order" or ours == "--forget-offsets":
            rest += [ours] if value.lower() == "true" else []
        elif ours == "--queue":
            rest += [ours, f"{broker}:{value}" if broker else value]
        elif option == "-s" and ours is not None:
            rest += [ours, _moment(name, value)]
        elif ours not in (None, _FLAG, _BROKER):
            rest += [str(ours), value]
    words = (given[one] for one in arguments.split() if one in given)
    return [*verb.split(), *words, *rest, *unknown]


def _taken_apart(
    options: list[str], renamed: Mapping[str, str | None], arguments: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the values of mqadmin's options, in their order, and what is none of them."""
    given: dict[str, str] = {}
    unknown: list[str] = []
    at = 0
    while at < len(options):
        option, value = options[at], ""
        at += 1
        if option not in arguments and option not in renamed:
            unknown.append(option)
            continue
        if renamed.get(option) != _FLAG and at < len(options) and not options[at].startswith("--"):
            value = options[at]
            at += 1
        given[option] = value
    return given, unknown


def _refuse_other(
    name: str, given: Mapping[str, str], renamed: Mapping[str, str | None]
) -> None:
    """Raise where mqadmin would do something else than the command that it becomes."""
    queue = next((one for one, ours in renamed.items() if ours == "--queue"), "")
    said = ""
    if renamed.get("-b") == _BROKER and "-b" in given and queue not in given:
        said = f"-b {given['-b']}: without {queue} it chooses nothing, not in mqadmin either"
    if name == "updateTopic":
        to_read, to_write = (given.get(one, _MQADMIN_QUEUES) for one in ("-r", "-w"))
        if to_read != to_write:
            said = (
                f"-r {to_read} and -w {to_write}: a topic has as many queues to read as to write "
                f"here; give the same for both (each is {_MQADMIN_QUEUES} if it is left out)"
            )
    elif name == "resetOffsetByTime" and given.get("-f", "true").lower() != "true":
        said = f"-f {given['-f']}: offsets are also set back here; leave it out"
    if said:
        raise ConfigurationError(f"{name} {said}")


def _moment(name: str, value: str) -> str:
    """Return mqadmin's ``-s`` as our commands take it: it has ms since 1970, and -1 for now."""
    is_reset = name == "resetOffsetByTime"
    if is_reset and value in ("-1", "now"):
        return "latest"
    if value in ("-1", "0"):
        return "earliest"
    day, has_time, time = value.partition("#")
    if has_time:  # 2026-01-31#12:00:05:123
        return f"{day}T{'.'.join(time.rsplit(':', 1))}"
    if not (value.isascii() and value.isdigit()):
        return value
    from datetime import UTC, datetime  # only for those who need it

    try:
        moment = datetime.fromtimestamp(int(value) / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(
            f"{name} -s {value}: expected a time in ms since 1970, such as 1700000000000"
        ) from error
    return moment.isoformat(timespec="milliseconds")
