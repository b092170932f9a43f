"""PostgreSQL and MariaDB: Debian's servers, unprivileged, on loopback, in a temporary directory."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

READY_S = 60.0
USER = "shop"
PASSWORD = "p@ss:word/%"  # nothing may take it apart, or leave it out
#: An account that owns nothing, for servers that refuse to run as root.
NOBODY = "nobody"


class Server:
    """A database server of its own, for databases that tests create.

    Attributes:
        driver: of its URLs.
        parent: the database that is always there.
        package: of Debian, that has it.
        options: of the databases it creates.
        ending: the signal that ends it at once and leaves nothing behind.
    """

    driver: str
    parent: str
    package: str
    options = ""
    ending = signal.SIGKILL

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pymq-shop-db-"))
        self._account: dict[str, Any] = {}
        if os.getuid() == 0:
            account = pwd.getpwnam(NOBODY)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._account = {
                "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []
            }
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port: int = listener.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.initialize()
        self.start()

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run here; ``None``: it can."""
        raise NotImplementedError

    def initialize(self) -> None:
        """Make its directory."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        """Return what runs it."""
        raise NotImplementedError

    def url(self, database: str) -> str:
        """Return the URL of a database, with the password."""
        url = make_url(f"{self.driver}://127.0.0.1/{database}")
        return url.set(username=USER, password=PASSWORD, port=self.port).render_as_string(
            hide_password=False
        )

    def run(self, *command: str) -> None:
        """Run a tool of the server, as its account."""
        result = subprocess.run(
            command, capture_output=True, cwd=self.folder, check=False, **self._account
        )
        assert result.returncode == 0, (command, result.stdout, result.stderr)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        end = time.monotonic() + READY_S
        while True:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        self.command(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self.folder,
                        **self._account,
                    )
            try:
                self.execute("SELECT 1")
                return
            except DBAPIError as error:
                if time.monotonic() > end:
                    words = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"{self.command()[0]}: {error}\n{words}") from error
            time.sleep(0.05)  # after a kill, its helpers end a moment later

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def execute(self, statement: str) -> None:
        """Execute a statement that stands outside of transactions."""
        engine = create_engine(self.url(self.parent), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def create(self) -> str:
        """Create an empty database; return its URL."""
        name = f"shop_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} {self.options}")
        return self.url(name)

    def close(self) -> None:
        """Stop it, and delete everything."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.ending)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL."""

    driver = "postgresql+psycopg"
    parent = "postgres"
    package = "postgresql"
    ending = signal.SIGINT

    @classmethod
    def programs(cls) -> Path | None:
        """Return the folder with its programs, of the newest version."""
        on_path = shutil.which("initdb")
        found = [Path(on_path)] if on_path else []
        debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
        found += sorted(debian, key=lambda path: int(path.parts[-3]), reverse=True)
        return found[0].parent if found else None

    @classmethod
    def missing(cls) -> str | None:
        return None if cls.programs() else "no PostgreSQL (Debian: apt-get install postgresql)"

    def initialize(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self.run(
            *(f"{self.programs()}/initdb", "-D", f"{self.folder}/data", "-U", USER),
            *("-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--locale=C"),
            "--no-sync",
        )

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 300,
            "fsync": "off",  # what a killed process has written stays
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        program, folder = f"{self.programs()}/postgres", f"{self.folder}/data"
        return [program, "-D", folder, "-p", str(self.port), *options]


class MariaDb(Server):
    """MariaDB."""

    driver = "mysql+pymysql"
    parent = "mysql"
    package = "mariadb-server-core"
    options = "CHARACTER SET latin1"  # has few characters: tables must say what they need

    @classmethod
    def missing(cls) -> str | None:
        for program in ("mariadbd", "mariadb-install-db"):
            if cls.program(program) is None:
                return f"no {program} (Debian: apt-get install {cls.package} mariadb-client-core)"
        return None

    @staticmethod
    def program(name: str) -> str | None:
        """Return where a program is."""
        return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")

    def initialize(self) -> None:
        user = f"{USER}@127.0.0.1"
        (self.folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {user};\n"
        )
        self.run(
            *(f"{self.program('mariadb-install-db')}", "--no-defaults", "--skip-test-db"),
            *(f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal"),
        )

    def command(self) -> Sequence[str]:
        return [
            *(f"{self.program('mariadbd')}", "--no-defaults", f"--datadir={self.folder}/data"),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            *(f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid"),
            *(f"--init-file={self.folder}/init.sql", "--max-connections=300"),
            "--innodb-flush-log-at-trx-commit=2",  # what a killed process has written stays
        ]


SERVERS: dict[str, type[Server]] = {"postgresql": Postgres, "mariadb": MariaDb}
