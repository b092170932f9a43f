"""A file system that does not tell upper from lower case, as those of macOS and Windows."""

from pathlib import Path

from pymq.store.files import DirectoryEntry, Files


class FoldingFiles(Files):
    """Finds what exists under any spelling; new names are kept as they are given."""

    def _found(self, path: Path) -> Path:
        """Return a path as it is spelled on the disk, as far as it exists."""
        found = Path(path.anchor)
        for part in path.parts[1:]:
            if not (found / part).exists() and found.is_dir():
                alike = (one.name for one in found.iterdir() if one.name.lower() == part.lower())
                part = next(alike, part)
            found /= part
        return found

    def open(self, path: Path, *, create: bool = False) -> int:
        return super().open(self._found(path), create=create)

    def open_for_reading(self, path: Path) -> int:
        return super().open_for_reading(self._found(path))

    def create_empty(self, path: Path) -> int:
        return super().create_empty(self._found(path))

    def open_emptied(self, path: Path) -> int:
        return super().open_emptied(self._found(path))

    def modified_ms(self, path: Path) -> int:
        return super().modified_ms(self._found(path))

    def fsync_directory(self, path: Path) -> None:
        super().fsync_directory(self._found(path))

    def make_directory(self, path: Path, mode: int = 0o777) -> bool:
        return super().make_directory(self._found(path), mode)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        return super().list_directory(self._found(path))

    def exists(self, path: Path) -> bool:
        return super().exists(self._found(path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(self._found(source), self._found(target))

    def remove(self, path: Path) -> None:
        super().remove(self._found(path))

    def remove_directory(self, path: Path) -> bool:
        return super().remove_directory(self._found(path))

    def read_file(self, path: Path) -> bytes | None:
        return super().read_file(self._found(path))
