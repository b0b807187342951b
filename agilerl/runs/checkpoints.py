"""Checkpoint directories: written atomically, verified by checksums when read, renamed when damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agilerl.core.files import sync_folder, write_synced
from agilerl.core.hostile import READ_PLAIN
from agilerl.errors import CorruptCheckpoint, RunError

FORMAT = 1
# Migrations of older manifests: format n -> a function from the body of format n to that of format n + 1.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
MANIFEST = "manifest.json"
POPULATION, BEST, REST = "population.safetensors", "best.safetensors", "run.safetensors"
_GENERATION = re.compile(r"gen-(\d{10})")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.safetensors")
_LARGEST_MANIFEST = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Saved:
    """A verified checkpoint.

    Attributes:
        path: its directory. number: its generation. body: the manifest. files: contents by name.
    """

    path: Path
    number: int
    body: dict[str, Any]
    files: dict[str, bytes]


def canonical(body: Mapping[str, Any]) -> str:
    """JSON in one line: sorted keys, no spaces, finite numbers only."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def write_checkpoint(root: Path, number: int, files: Mapping[str, bytes], body: Mapping[str, Any]) -> Path:
    """Write `root/gen-<number>/` atomically; an existing one is kept.

    A temporary directory gets the files, then the manifest with their sizes and checksums; everything is flushed to
    disk, the directory renamed, and its parent flushed.

    Raises:
        OSError: no space, for example; nothing is left of the attempt.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"gen-{number:010d}"
    temporary = root / f".tmp-{final.name}-{secrets.token_hex(4)}"
    try:
        temporary.mkdir()
        for name, data in files.items():
            write_synced(temporary / name, data)
        sizes = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
        text = canonical({**body, "format": FORMAT, "generation": number, "files": sizes})
        write_synced(temporary / MANIFEST, f"{text}\n{_sha256(text.encode())}\n".encode())
        sync_folder(temporary)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(root)
    return final


def read_checkpoint(path: Path) -> Saved:
    """Read and verify the checkpoint at `path`.

    Raises:
        CorruptCheckpoint: any of its content has changed.
        RunError: it was written by a later version.
    """
    body = read_manifest(path)
    files = {}
    try:
        for name, facts in body["files"].items():
            files[name] = _read_exactly(path / name, int(facts["bytes"]))
            if _sha256(files[name]) != facts["sha256"]:
                raise CorruptCheckpoint(f"{path / name} does not match its checksum.")
        return Saved(path, int(body["generation"]), body, files)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, RunError):
            raise
        raise CorruptCheckpoint(f"{path / MANIFEST} does not say what a file holds ({error}).") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify the manifest of the checkpoint at `path`, in this version's format."""
    file = path / MANIFEST
    try:
        if file.is_symlink() or not 0 < file.stat().st_size <= _LARGEST_MANIFEST:
            raise CorruptCheckpoint(f"{file} is empty, too large, or no file of its own.")
        text, digest, rest = file.read_text(encoding="ascii").split("\n")
        if rest or _sha256(text.encode()) != digest:
            raise CorruptCheckpoint(f"{file} does not match its checksum.")
        body: dict[str, Any] = json.loads(text)
        return _migrated(body, path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        if isinstance(error, RunError):
            raise
        raise CorruptCheckpoint(f"{file} cannot be read ({error}).") from error


def _migrated(body: dict[str, Any], path: Path) -> dict[str, Any]:
    version = int(body["format"])
    if version > FORMAT:
        raise RunError(f"{path} has checkpoint format {version}; expected at most {FORMAT}. fix: upgrade agilerl.")
    for number in range(version, FORMAT):
        if number not in MIGRATIONS:
            raise RunError(f"{path} has checkpoint format {number}, which is no longer read. fix: an older agilerl.")
        body = MIGRATIONS[number](body)
    if f"gen-{int(body['generation']):010d}" != path.name:
        raise CorruptCheckpoint(f"{path} holds generation {body['generation']}.")
    if not all(_FILE.fullmatch(name) for name in body["files"]):
        raise CorruptCheckpoint(f"{path / MANIFEST} names files that no checkpoint has.")
    return body


def _read_exactly(path: Path, size: int) -> bytes:
    """The content of a file of `size` bytes; a file of another size is not read."""
    with open_unlinked(path) as (file, actual_size):
        if actual_size != size:
            raise CorruptCheckpoint(f"{path} has {actual_size} bytes; expected {size}.")
        return file.read(size)


@contextlib.contextmanager
def open_unlinked(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """(a file to read from, its size in bytes); CorruptCheckpoint for a link or an unreadable file."""
    try:
        descriptor = os.open(path, READ_PLAIN)
        with open(descriptor, "rb") as file:
            yield file, os.fstat(descriptor).st_size
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read ({error.strerror}).") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def generations(root: Path) -> list[Path]:
    """The checkpoint directories under `root`, oldest first, by their numbers."""
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if _GENERATION.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def newest_checkpoint(root: Path) -> tuple[Saved | None, list[str]]:
    """(the newest intact checkpoint, notes on damaged ones); damaged ones are renamed `bad-*`, never deleted."""
    damaged: list[str] = []
    for path in reversed(generations(root)):
        try:
            return read_checkpoint(path), damaged
        except CorruptCheckpoint as error:
            damaged.append(_quarantined(path, error))
    return None, damaged


def whole_manifests(root: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """(manifests of the intact checkpoints under `root`, notes on damaged ones); damaged ones are renamed `bad-*`."""
    bodies, damaged = {}, []
    for path in generations(root):
        try:
            bodies[path] = read_checkpoint(path).body
        except CorruptCheckpoint as error:
            damaged.append(_quarantined(path, error))
    return bodies, damaged


def _quarantined(path: Path, error: CorruptCheckpoint) -> str:
    return f"checkpoint {path.name} is damaged and was renamed {set_aside(path).name}: {error}"


def set_aside(path: Path) -> Path:
    """Rename a damaged file or directory to `bad-<name>`; returns its new path."""
    target, count = path.with_name(f"bad-{path.name}"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"bad-{count}-{path.name}")
    os.rename(path, target)
    sync_folder(path.parent)
    return target


def prune(root: Path, keep: Iterable[Path]) -> None:
    """Delete the checkpoints under `root` that are not in `keep`, and leftovers of interrupted writes or deletions."""
    retained = set(keep)
    for path in generations(root):
        if path not in retained:
            os.rename(path, root / f".trash-{path.name}-{secrets.token_hex(4)}")
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith((".tmp-gen-", ".trash-gen-")):
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
