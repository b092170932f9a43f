"""PostgreSQL and MariaDB, for databases that tests create."""

import secrets
import shutil
import signal
import time
from collections.abc import Sequence

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from tests.shop.hosts import Host, Loopback

READY_S = 180.0  # a busy disk holds up MariaDB for long
USER = "shop"
PASSWORD = "p@ss:word/%"  # nothing may take it apart, or leave it out


class Server:
    """A database server of its own.

    Args:
        host: where it runs; by default this machine, with Debian's programs.
        durable: what it commits survives the machine, as by default in production; else only the
            end of the process.

    Attributes:
        driver: of its URLs.
        parent: the database that is always there.
        port: that it has by default.
        options: of the databases it creates.
        ending: the signal that ends it at once and leaves nothing behind.
        programs: where it is found, when it is not on the path.
        package: of Debian, that has it.
    """

    driver: str
    parent: str
    port: int
    options = ""
    ending = signal.SIGKILL
    programs: Sequence[str]
    package: str

    def __init__(self, host: Host | None = None, *, durable: bool = False) -> None:
        self.host = Loopback() if host is None else host
        self.durable = durable
        self.initialize()
        self.start()

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run on this machine; ``None``: it can."""
        host = Loopback()
        try:
            for pattern in cls.programs:
                if _program(host, pattern) is None:
                    name = pattern.rpartition("/")[2]
                    return f"no {name} (Debian: apt-get install {cls.package})"
        finally:
            host.close()
        return None

    def initialize(self) -> None:
        """Make its directory."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        """Return what runs it."""
        raise NotImplementedError

    def program(self, name: str) -> str:
        """Return where one of its programs is."""
        (pattern,) = (one for one in self.programs if one.endswith(f"/{name}"))
        found = _program(self.host, pattern)
        assert found is not None, pattern
        return found

    def url(self, database: str) -> str:
        """Return the URL of a database, with the password."""
        url = make_url(f"{self.driver}://127.0.0.1/{database}")
        return url.set(username=USER, password=PASSWORD, port=self.host.port).render_as_string(
            hide_password=False
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        end = time.monotonic() + READY_S
        while True:
            if not self.host.is_running():
                self.host.start(self.command())
            try:
                self.execute("SELECT 1")
                return
            except DBAPIError as error:
                if time.monotonic() > end:
                    words = self.host.log()[-2000:]
                    raise AssertionError(f"{self.command()[0]}: {error}\n{words}") from error
            time.sleep(0.05)  # after a kill, its helpers end a moment later

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.host.kill()

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
        self.host.close(self.ending)


def _program(host: Host, pattern: str) -> str | None:
    found = host.find(pattern)
    if found is None and isinstance(host, Loopback):
        found = shutil.which(pattern.rpartition("/")[2])
    return found


class Postgres(Server):
    """PostgreSQL."""

    driver = "postgresql+psycopg"
    parent = "postgres"
    port = 5432
    ending = signal.SIGINT
    programs = ("/usr/lib/postgresql/*/bin/initdb", "/usr/lib/postgresql/*/bin/postgres")
    package = "postgresql"

    def initialize(self) -> None:
        folder = self.host.folder
        self.host.write("password", PASSWORD)
        self.host.write("hba", "host all all all scram-sha-256\n")
        self.host.run(
            *(self.program("initdb"), "-D", f"{folder}/data", "-U", USER),
            *("-A", "scram-sha-256", f"--pwfile={folder}/password", "-E", "UTF8"),
            *("--locale=C", "--no-sync"),
        )

    def command(self) -> Sequence[str]:
        folder = self.host.folder
        settings = {
            "listen_addresses": self.host.listen,
            "hba_file": f"{folder}/hba",
            "unix_socket_directories": "",
            "max_connections": 300,
            "fsync": "on" if self.durable else "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        port = str(self.host.listen_port)
        return [self.program("postgres"), "-D", f"{folder}/data", "-p", port, *options]


class MariaDb(Server):
    """MariaDB."""

    driver = "mysql+pymysql"
    parent = "mysql"
    port = 3306
    options = "CHARACTER SET latin1"  # has few characters: tables must say what they need
    programs = ("/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db")
    package = "mariadb-server-core mariadb-client-core"

    def initialize(self) -> None:
        self.host.write(
            "init.sql",
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {USER}@'%';\n",
        )
        self.host.run(
            *(self.program("mariadb-install-db"), "--no-defaults", "--skip-test-db"),
            *(f"--datadir={self.host.folder}/data", "--auth-root-authentication-method=normal"),
        )

    def command(self) -> Sequence[str]:
        folder = self.host.folder
        return [
            *(self.program("mariadbd"), "--no-defaults", f"--datadir={folder}/data"),
            *(f"--port={self.host.listen_port}", f"--bind-address={self.host.listen}"),
            *("--skip-name-resolve", f"--socket={folder}/socket", f"--pid-file={folder}/pid"),
            *(f"--init-file={folder}/init.sql", "--max-connections=300"),
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
        ]


SERVERS: dict[str, type[Server]] = {"postgresql": Postgres, "mariadb": MariaDb}
