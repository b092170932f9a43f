"""Records that their sender has encoded, on the way to a broker; ``preencoded_records``."""

from typing import NamedTuple


class RecordsBody(NamedTuple):
    """Pre-encoded records for one queue.

    Attributes:
        body: V1 records with IPv4 hosts, back to back; zeros in what only a broker knows. Must
            not change until the send is answered.
        sizes: what each takes, packed (``protocol.preencoded_records.pack_sizes``).
        record_count: how many.
    """

    body: memoryview
    sizes: bytes
    record_count: int
