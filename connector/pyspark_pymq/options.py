"""Checking options before it is known whether they are for reading or for writing."""

from collections.abc import Mapping

from pyspark_pymq.option_tables import SINK_OPTIONS, SOURCE_OPTIONS
from pyspark_pymq.option_values import Table, given_options, read_options
from pyspark_pymq.sink.options import sink_options
from pyspark_pymq.source.option_checks import source_options


def check_options(options: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether to read or to write.

    Spark tells a data source its options first and its direction later, in some cases not before
    the query runs; a misspelt option must not wait for that.

    Raises:
        ConfigurationError: an option is unknown, missing or malformed.
    """
    given = given_options(options).keys()
    for_source = given & _only_in(SOURCE_OPTIONS, SINK_OPTIONS)
    for_sink = given & _only_in(SINK_OPTIONS, SOURCE_OPTIONS)
    if for_source and not for_sink:
        source_options(options)
    elif for_sink and not for_source:
        sink_options(options)
    else:
        both = {**SOURCE_OPTIONS, **SINK_OPTIONS}
        read_options(options, both, required=("nameServer",), side="source or sink")


def _only_in(table: Table, other: Table) -> set[str]:
    return {name.lower() for name in table if name not in other}
