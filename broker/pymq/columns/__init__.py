"""Messages as columns: numpy and Arrow arrays made of records, and records made of them.

``values`` and ``binary_column`` need numpy; ``arrow_batches``, ``record_rows``, ``encoding`` and
what they stand on need pyarrow, too. An installation without extras lacks both, so clients import
this package where it is used.
"""

from pymq.errors import ConfigurationError

try:
    import numpy as numpy
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"columns need {error.name}, which is not installed: pip install 'pymq-rocketmq[columns]'"
    ) from error
