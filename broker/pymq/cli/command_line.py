"""Arguments before they are parsed: options before the verb, and the names that mqadmin has."""

from collections.abc import Sequence

#: Options of every command, and whether a value follows.
_SHARED = {
    "--name-server": True,
    "-n": True,
    "--profile": True,
    "--output": True,
    "-o": True,
    "--timeout": True,
    "--map": True,
    "--verbose": False,
    "-v": False,
    "-vv": False,
    "--quiet": False,
    "-q": False,
}

#: mqadmin's name -> our verb; the options of mqadmin that are arguments here, in our order; what
#: other options are called here (``None``: not needed here, with its value).
_MQADMIN: dict[str, tuple[str, str, dict[str, str | None]]] = {
    "topicList": ("topic list", "", {"-c": None}),
    "topicRoute": ("topic route", "-t", {}),
    "topicStatus": ("topic status", "-t", {}),
    "updateTopic": (
        "topic create",
        "-t",
        {"-c": "--cluster", "-r": "--queues", "-w": None, "-p": "--perm", "-o": "--order"},
    ),
    "updateTopicPerm": ("topic update", "-t", {"-p": "--perm", "-c": None}),
    "deleteTopic": ("topic delete", "-t", {"-c": "--cluster"}),
    "updateSubGroup": ("group create", "-g", {"-c": "--cluster", "-r": "--retries"}),
    "deleteSubGroup": ("group delete", "-g", {"-c": "--cluster", "-r": "--forget-offsets"}),
    "consumerProgress": ("group lag", "-g", {"-t": "--topic"}),
    "consumerConnection": ("group members", "-g", {}),
    "resetOffsetByTime": (
        "group reset",
        "-g",
        {"-t": "--topic", "-s": "--to", "-f": None, "-q": "--queue", "-b": None},
    ),
    "clusterList": ("cluster list", "", {"-c": None}),
    "brokerStatus": ("cluster state", "-b", {}),
    "deleteExpiredCommitLog": ("cluster clean", "-b", {"-c": None}),
    "queryMsgByKey": ("message find", "-t -k", {"-c": "--count", "-m": "--count"}),
    "queryMsgById": ("message show", "-i", {"-t": "--topic"}),
    "queryMsgByUniqueKey": ("message show", "-i", {"-t": "--topic"}),
    "queryMsgByOffset": ("message at", "-t -o", {"-i": "--queue"}),
    "sendMessage": (
        "send", "-t -p", {"-c": "--tags", "-k": "--keys", "-i": "--queue", "-b": None}
    ),
    "consumeMessage": (
        "consume --no-follow",
        "-t",
        {"-g": "--group", "-c": "--count", "-i": "--queue", "-s": "--from"},
    ),
}


def prepared(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the verb first, under our name.

    Options that all commands share may stand before the verb. The names of mqadmin's commands,
    with its options, are understood where there is a command of ours that does the same.
    """
    leading, rest = _split(list(arguments))
    if rest[:1] == ["tail"]:
        rest = [
            "--lines" if one == "-n" and rest[at + 1 : at + 2] and rest[at + 1].isdigit() else one
            for at, one in enumerate(rest)
        ]
    if rest and rest[0] in _MQADMIN:
        rest = _translated(rest[0], rest[1:])
    if not leading:
        return rest
    if not rest:
        return leading
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *leading, *rest[end:]]


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the shared options before the verb, and the rest."""
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        if name not in _SHARED:
            break
        at += 2 if _SHARED[name] and not equals else 1
    return arguments[:at], arguments[at:]


def _translated(name: str, options: list[str]) -> list[str]:
    """Return what mqadmin's command is here."""
    verb, arguments, renamed = _MQADMIN[name]
    given: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(options):
        option = options[at]
        has_value = at + 1 < len(options) and not options[at + 1].startswith("--")
        value = options[at + 1] if has_value else ""
        if option in arguments.split():
            given[option] = value
        elif option in renamed:
            ours = renamed[option]
            if ours == "--order" or ours == "--forget-offsets":
                rest += [ours] if value.lower() == "true" else []
            elif ours is not None:
                rest += [ours, _value(name, option, value)]
        else:
            rest.append(option)
            at += 1
            continue
        at += 2
    return [*verb.split(), *(given[one] for one in arguments.split() if one in given), *rest]


def _value(name: str, option: str, value: str) -> str:
    """Return a value as our option takes it: mqadmin has -1 for now, and other times."""
    if name == "resetOffsetByTime" and option == "-s":
        if value in ("-1", "now"):
            return "latest"
        return "earliest" if value == "0" else value
    return value
