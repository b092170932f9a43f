"""What all tests share: the seed, hypothesis' settings, and no exception that nobody awaited.

Environment:

====================  ==============================================================================
``PYMQ_TEST_SEED``    seed of the random tests; printed at the start, and again after a failure
``PYMQ_HYPOTHESIS``   ``default`` (60 examples a test) or ``long`` (1,000)
``PYMQ_CRASH_ROUNDS`` how often a crash test crashes; 6 by default
``PYMQ_GOLDEN``       ``all``: stores pass between all versions, in every state, direction and end
``PYMQ_TURNS``        ``all``: tests that run by turns run all of them: see ``turns.py``
====================  ==============================================================================
"""

import gc
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.turns import leave_those_whose_turn_it_is

# What helpers assert says what it compared, as in the tests themselves.
pytest.register_assert_rewrite("tests.cluster", "tests.crash", "tests.interop", "tests.spark")

SEED = int(os.environ.get("PYMQ_TEST_SEED") or random.SystemRandom().randrange(1 << 31))
os.environ["PYMQ_TEST_SEED"] = str(SEED)  # processes that share the tests have the same

#: How often `./build.sh test` has a crash test crash; the long runs ask for more.
ROUNDS_OF_A_TEST = 6

# Spark starts its workers with this interpreter, and listens on this machine alone.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Its JVMs live for a minute at most: what the second compiler costs, it never brings back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Whoever starts the tests in the background has signals ignored that tests send to children.
for _ignored, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, _handler)

# A shared machine stalls now and then; a deadline would make a failure of it.
SLOW = [hypothesis.HealthCheck.too_slow]
for name, count in (("default", 60), ("long", 1_000)):
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=count, print_blob=True, suppress_health_check=SLOW
    )
hypothesis.settings.load_profile(os.environ.get("PYMQ_HYPOTHESIS", "default"))


def pytest_report_header() -> str:
    return f"PYMQ_TEST_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(f"to repeat the random tests: PYMQ_TEST_SEED={SEED}")


@pytest.hookimpl(trylast=True)  # after -k and -m: turns are drawn among what was asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_those_whose_turn_it_is(config, items, SEED)
    _skip_without_java(items)


def _skip_without_java(items: list[pytest.Item]) -> None:
    """Without a Java, tests that start Spark are skipped; in CI they run, and fail."""
    java_home = os.environ.get("JAVA_HOME")
    has_java = shutil.which("java") or (java_home and (Path(java_home) / "bin/java").exists())
    if has_java or os.environ.get("CI"):
        return
    skip = pytest.mark.skip(reason="no Java found: set JAVA_HOME to a Java 17 or 21")
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """All modules and tests stay, so no full collection looks at them: that takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def seed() -> int:
    """Seed of this run. Give every test its own ``random.Random(seed)``."""
    return SEED


@pytest.fixture(scope="session")
def crash_rounds() -> int:
    """How many times a crash test repeats its crash."""
    return int(os.environ.get("PYMQ_CRASH_ROUNDS") or ROUNDS_OF_A_TEST)


# ------------------------------------------------------------------- exceptions nobody awaited


class Unawaited(logging.Handler):
    """Collects the tracebacks that end in a log because nobody was there to take them.

    That is everything asyncio reports as an error (a task's exception never retrieved, a task
    destroyed while pending), and what the top of a task or a connection of ours logs with the
    traceback of a bug. Failures that are part of life (ours, and the system's) are not bugs.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if record.name.startswith("asyncio") or (error is not None and is_bug(error)):
            self.texts.append(self.format(record))


def is_bug(error: BaseException) -> bool:
    from pymq.errors import PymqError

    return not isinstance(error, PymqError | OSError)


UNAWAITED = Unawaited()


def pytest_configure() -> None:
    for logger in ("asyncio", "pymq", "pyspark_pymq"):
        logging.getLogger(logger).addHandler(UNAWAITED)


@pytest.fixture(autouse=True)
def unawaited() -> Iterator[list[str]]:
    """Fails the test during which an exception came up that nobody awaited.

    A test that provokes one on purpose asks for this fixture and clears the list.
    """
    logger = logging.getLogger("asyncio")
    level = logger.level  # commands set it, and tests of crashes have the root logger silent
    yield UNAWAITED.texts
    logger.setLevel(level)
    if sys.modules.get("asyncio"):
        gc.collect(1)  # young garbage only: a full collection after each test costs too much
    texts, UNAWAITED.texts[:] = list(UNAWAITED.texts), []
    if texts:
        pytest.fail("nobody awaited:\n\n" + "\n\n".join(texts), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What only a full collection brings to light fails the run as a whole."""
    gc.collect()
    if UNAWAITED.texts:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write("\nnobody awaited:\n\n" + "\n\n".join(UNAWAITED.texts) + "\n")
