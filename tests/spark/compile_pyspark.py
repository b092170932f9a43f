"""Put compiled modules into the archive from which Spark's Python processes import pyspark.

Spark starts such processes for the plan of each query, and each of them compiles what it imports,
for half a second: an archive keeps no compiled modules by itself.
"""

import compileall
import os
import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark


def main() -> int:
    """Compile the archive of this interpreter's Spark, once."""
    archive = Path(pyspark.__file__).parent / "python/lib/pyspark.zip"
    with zipfile.ZipFile(archive) as before, tempfile.TemporaryDirectory() as folder:
        wanted = [name for name in before.namelist() if "/tests/" not in name]
        if any(name.endswith(".pyc") for name in wanted):
            return 0
        before.extractall(folder, wanted)
        compileall.compile_dir(
            *(folder, None, ""),
            quiet=2,
            legacy=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        made = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(made, "w") as after:
            for path in sorted(Path(folder).rglob("*")):
                after.write(path, path.relative_to(folder))
        made.replace(archive)  # whole, whoever reads it now
    return 0


if __name__ == "__main__":
    sys.exit(main())
