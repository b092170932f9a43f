"""What connects pymq with other libraries; each module is loaded only by who imports it.

* ``faststream``: a FastStream broker (extra ``faststream``);
* ``kombu``: a Kombu transport, for Celery (extra ``kombu``);
* ``structured_logging``: fields of the message at hand in log records; needs nothing.

OpenTelemetry is in ``pymq.otel``.
"""
