"""Files written atomically and flushed to disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` to `path` atomically: a reader sees the old file or the new one.

    A temporary file in the same folder is written, flushed to disk and renamed; then the folder is flushed.
    Parent folders are created. After a failure the old file is unchanged and no temporary file is left.

    Args:
        path: the file to write or replace. data: bytes, or text that is written as UTF-8.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write_synced(temporary, data.encode("utf-8") if isinstance(data, str) else data)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk; FileExistsError if it exists, even as a dangling link."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power failure."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_files(made: Path, folder: Path, last: str) -> None:
    """Move the files of `made`, a sibling folder, into `folder`, keeping its other files.

    Each file is moved atomically, `last` after all others. A missing `folder` appears with all files at once.
    """
    for path in made.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    if not folder.exists():
        made.rename(folder)
    else:
        for path in sorted(made.iterdir(), key=lambda path: path.name == last):
            path.replace(folder / path.name)
        sync_folder(folder)
    sync_folder(folder.parent)


def with_suffix(path: str | os.PathLike[str]) -> Path:
    """Return the path of a saved elite, which ends in `.pt`, as published."""
    return Path(path if str(path).endswith(".pt") else f"{path}.pt")
