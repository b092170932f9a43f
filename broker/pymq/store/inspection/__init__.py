"""A store directory seen from outside: what is in it, and whether it is whole.

Nothing here changes a byte or keeps anybody from the directory, and no file has to be writable.
Sizes are taken from the files themselves, so stores with other settings, and stores that
RocketMQ wrote, are read as they are.

``check_store`` reads everything, ``summarize`` only the ends.
"""

from pymq.store.inspection.check import Report, check_store
from pymq.store.inspection.findings import Finding, Findings, Kind, Severity
from pymq.store.inspection.summary import Summary, summarize

__all__ = [
    "Finding",
    "Findings",
    "Kind",
    "Report",
    "Severity",
    "Summary",
    "check_store",
    "summarize",
]
