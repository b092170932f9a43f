"""Inspection of a store directory: its content, and whether it is undamaged.

Nothing is changed or locked, and no file has to be writable. Sizes are taken from the files, so
that stores with other settings and stores written by RocketMQ can be read.

``check_store`` reads everything, ``summarize`` only the ends of files.
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
