"""The jars of official peers, fetched once through Maven and kept outside the tree.

A complete set lies in ``<cache>/peers/<version>-<hash of its pom.xml>/``. Maven fills a directory
of another name beside it, renamed when everything is there: a directory of the final name is
always whole. A file lock keeps two test runs from fetching the same version at once.

Only the standard library is used, so that this file also runs before anything is installed::

    python tests/interop/jars.py --fetch all
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSIONS: Final = ("4.5.1", "4.9.7", "5.3.3", "5.4.0", "5.5.0")
#: Sets of other jars: the proxy, and the client that needs it.
PROXY: Final = "proxy-5.4.0"
GRPC_CLIENT: Final = "grpc-5.0.8"
SETS: Final = (*VERSIONS, PROXY, GRPC_CLIENT)
#: What the Spark benchmark compares with; the tests need neither.
KAFKA: Final = "kafka-3.9.1"
SPARK_KAFKA: Final = "spark-kafka-4.2.0"
_EVERY_SET: Final = (*SETS, KAFKA, SPARK_KAFKA)
MAVEN_TIMEOUT_S: Final = 900.0
OUTPUT_TAIL_CHARS: Final = 4_000

_MAIN_JARS: Final = {
    PROXY: "rocketmq-proxy-5.4.0.jar",
    GRPC_CLIENT: "rocketmq-client-java-5.0.8.jar",
    KAFKA: "kafka_2.13-3.9.1.jar",
    SPARK_KAFKA: "spark-sql-kafka-0-10_2.13-4.2.0.jar",
}
_POMS: Final = Path(__file__).resolve().parent / "poms"
_log = logging.getLogger("interop.jars")


class JarsUnavailable(Exception):
    """Java, Maven or a jar is missing; the text says which and what to do."""


def java_executable() -> Path:
    """Return the ``java`` of ``JAVA_HOME``, or else the first one on ``PATH``.

    Raises:
        JarsUnavailable: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found is None:
        raise JarsUnavailable(
            "no java in $JAVA_HOME/bin or on PATH; install openjdk-17-jdk-headless"
        )
    return Path(found)


def why_unavailable(version: str) -> str | None:
    """Say why the peers of a version cannot run here, without fetching anything.

    Returns:
        The reason; ``None`` when Java is here and the jars are cached or Maven can fetch them.
    """
    try:
        java_executable()
        if not _jar_dir(version).is_dir():
            _maven_executable()
    except JarsUnavailable as reason:
        return str(reason)
    return None


def are_cached(version: str) -> bool:
    """Can the peers of a version run here, and nothing has to be fetched for that?"""
    try:
        java_executable()
        return _jar_dir(version).is_dir()
    except JarsUnavailable:
        return False


def class_path(version: str) -> str:
    """Return the class path of one version's broker, name server, tools and client.

    Fetches the jars first when the cache does not hold them (some seconds to a minute).

    Args:
        version: one of ``SETS``, ``KAFKA`` or ``SPARK_KAFKA``.

    Returns:
        ``<directory>/*``, the form that ``java -cp`` expands itself.

    Raises:
        JarsUnavailable: no such version, Maven is missing, or Maven failed.
    """
    target = _jar_dir(version)
    if not target.is_dir():
        with _locked(target.with_name(target.name + ".lock")):
            if not target.is_dir():  # another run may have fetched it while we waited
                _fetch(version, target)
    return f"{target}/*"


def py4j_jar() -> Path:
    """Return the jar that the installed py4j brought along (or pyspark's copy of it).

    Raises:
        JarsUnavailable: neither is installed.
    """
    try:
        files = importlib.metadata.files("py4j") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(f.locate())).resolve() for f in files if f.match("py4j*.jar")]
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        candidates += sorted((Path(pyspark.origin).parent / "jars").glob("py4j*.jar"))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise JarsUnavailable("no py4j*.jar in the installed py4j or pyspark; pip install py4j")


def cache_dir() -> Path:
    """Return ``$PYMQ_CACHE``, or ``pymq`` in ``$XDG_CACHE_HOME``, or ``~/.cache/pymq``."""
    given = os.environ.get("PYMQ_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymq"


def _jar_dir(version: str) -> Path:
    pom = _POMS / version / "pom.xml"
    if not pom.is_file():
        raise JarsUnavailable(f"no {pom}; sets of jars here: {', '.join(_EVERY_SET)}")
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return cache_dir() / "peers" / f"{version}-{digest}"


def _maven_executable() -> str:
    found = shutil.which("mvn")
    if found is None:
        raise JarsUnavailable("no mvn on PATH to fetch the Java peers; install Maven 3")
    return found


def _fetch(version: str, target: Path) -> None:
    """Let Maven copy all jars into a fresh directory, then give it its final name."""
    maven = _maven_executable()
    _log.info("fetching the jars of %s into %s", version, target)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    command = [
        maven, "-q", "-B", "-f", str(_POMS / version / "pom.xml"),
        "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False
        )
        output = (done.stdout + done.stderr)[-OUTPUT_TAIL_CHARS:]
        if done.returncode != 0:
            raise JarsUnavailable(f"{' '.join(command)}: exit {done.returncode}\n{output}")
        wanted = _MAIN_JARS.get(version, f"rocketmq-broker-{version}.jar")
        if not (partial / wanted).is_file():
            raise JarsUnavailable(f"{' '.join(command)}: no {wanted} in the result\n{output}")
        partial.chmod(0o755)
        partial.rename(target)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailable(f"{' '.join(command)}: not done in {MAVEN_TIMEOUT_S} s") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gone already after the rename


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released with the file
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the versions named on the command line; log where they are. Exit code 1 on failure."""
    parser = argparse.ArgumentParser(description="Fetch the jars of the real peers.")
    parser.add_argument("--fetch", nargs="+", required=True, choices=("all", *_EVERY_SET))
    wanted: list[str] = parser.parse_args(arguments).fetch
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        for version in SETS if "all" in wanted else wanted:
            _log.info("%s: %s", version, class_path(version))
    except JarsUnavailable as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
