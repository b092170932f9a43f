"""Text of the options about formats, schemas and bad records -> values."""

from collections.abc import Callable, Mapping
from typing import Any

from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.protocol.names import check_topic, is_retry_topic, takes_no_sends
from pyspark_pymq.values.formats import NAMES, avro_text, struct_of_text

#: What becomes of bad records.
FAIL, NULL, SIDE_TOPIC = "fail", "null", "sideTopic"

_SCHEMA, _FILE = "avroschema", "avroschemafile"
_OF_TABLE = "option."


def choice(*names: str) -> Callable[[str], str]:
    """Return what reads one of some names, in whatever case."""
    spelling = {name.lower(): name for name in names}

    def read(text: str) -> str:
        found = spelling.get(text.strip().lower())
        if found is None:
            raise ValueError(f"expected {', '.join(names[:-1])} or {names[-1]}")
        return found

    return read


def file_text(text: str) -> str:
    """Return what is in a file of the driver's machine."""
    try:
        with open(text, encoding="utf-8") as file:
            return avro_text(file.read())
    except OSError as error:
        raise ValueError(f"{error.strerror or error}; expected a file on the driver") from error


def target_topic(text: str) -> str:
    """Return a topic that can be written to."""
    check_target(text.strip())
    return text.strip()


def check_target(topic: str) -> None:
    """Accept a topic that batches may be sent to.

    Raises:
        ConfigurationError: its name is illegal, or the broker keeps it for itself.
    """
    try:
        check_topic(topic)
    except LocalProtocolError as error:
        raise ConfigurationError(str(error)) from error
    if takes_no_sends(topic) or is_retry_topic(topic):
        raise ConfigurationError(f"topic {topic} is the broker's own: batches cannot be sent to it")


def with_schema_text(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with avroSchema in place of avroSchemaFile.

    Spark hands its options to one process after the other. The file is read when the source or
    sink is made, so that all of them have the same text, on whatever machine and however late.

    Raises:
        ConfigurationError: the file cannot be read, or has no schema.
    """
    found = dict(options)
    given = {name.lower(): name for name in options}
    for prefix in ("", _OF_TABLE):
        name = given.get(prefix + _FILE)
        if name is not None and prefix + _SCHEMA not in given:
            path = found.pop(name)
            try:
                found[prefix + _SCHEMA] = file_text(path)
            except ValueError as error:
                raise ConfigurationError(
                    f"option avroSchemaFile={path!r} is wrong: {error}"
                ) from error
    return found


FORMAT_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "valueFormat": ("value_format", choice(*NAMES)),
    "avroSchema": ("avro_schema", avro_text),
    "avroSchemaFile": ("avro_schema_file", file_text),
}
READ_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "valueSchema": ("value_schema", struct_of_text),
    "badRecords": ("bad_records", choice(FAIL, NULL, SIDE_TOPIC)),
    "badRecordsTopic": ("bad_records_topic", target_topic),
}
