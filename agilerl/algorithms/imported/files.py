"""Files of other libraries: members of a zip and dictionaries of tensors, without running what they hold."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agilerl.core.hostile import MIB, read_regular
from agilerl.errors import NotAvailableYetError, RunError

if TYPE_CHECKING:
    from agilerl.core.tree import Tree

MAX_FILE = 512 * MIB
MAX_MEMBER = 256 * MIB  # of a zip, unpacked
MAX_MEMBERS = 10_000
MAX_NUMBERS = 2**26  # of all tensors together
MAX_SHOWN = 8  # tensors named in a message


def zip_of(content: bytes, source: str) -> zipfile.ZipFile:
    """Open a zip; nothing is unpacked to disk, so that names with paths in them lead nowhere.

    Raises:
        RunError: not a zip, or one of too many members or bytes.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise RunError(f"{source} is not a zip file ({error}). fix: name the file that the library wrote.") from None
    members = archive.infolist()
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > 2 * MAX_FILE:
        raise RunError(f"{source} unpacks to too much ({len(members)} members). fix: name another file.")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise RunError(f"{source} holds two members of one name. fix: name the file that the library wrote.")
    return archive


def read_zip(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    """Open the zip at a path; see `zip_of` and `file_content`."""
    return zip_of(file_content(path), str(path))


def file_content(path: str | os.PathLike[str]) -> bytes:
    """Read a policy file of at most `MAX_FILE` bytes; see `hostile.read_regular`.

    Raises:
        RunError: missing, a folder, too large, or not a regular file.
    """
    try:
        return read_regular(path, MAX_FILE)
    except FileNotFoundError:
        raise RunError(f"there is no file {path}. fix: check the path.") from None
    except IsADirectoryError:
        raise RunError(f"{path} is a folder. fix: name the file that the library wrote.") from None


def member_of(archive: zipfile.ZipFile, name: str, source: str) -> bytes | None:
    """Return the content of a member; None without one.

    Raises:
        RunError: too large, encrypted or damaged.
    """
    if name not in archive.namelist():
        return None
    if archive.getinfo(name).file_size > MAX_MEMBER:
        raise RunError(f"{source}: {name} unpacks to more than {MAX_MEMBER // MIB} MiB. fix: name another file.")
    try:
        with archive.open(name) as file:
            content = file.read(MAX_MEMBER + 1)  # the size in the directory of the zip may be wrong
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, ValueError) as error:
        raise RunError(f"{source}: {name} cannot be read ({error}). fix: save the model again.") from None
    if len(content) > MAX_MEMBER:
        raise RunError(f"{source}: {name} unpacks to more than {MAX_MEMBER // MIB} MiB. fix: name another file.")
    return content


def tensors_in(content: bytes, source: str) -> Any:
    """Return what `torch.save` wrote, of tensors, numbers, texts and containers alone.

    Raises:
        RunError: damaged, or other objects, which only a pickle restores.
    """
    archive = zip_of(content, source)
    if sum(member.file_size for member in archive.infolist()) > MAX_MEMBER:
        raise RunError(f"{source} unpacks to more than {MAX_MEMBER // MIB} MiB. fix: name another file.")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of the reader
        reason = " ".join(str(error).split())[:160]
        raise RunError(
            f"{source} does not hold tensors alone ({type(error).__name__}: {reason}). "
            "fix: a file of state dicts; other objects are not loaded."
        ) from None


def named_tensors(tree: Tree, source: str) -> dict[str, Tensor]:
    """Return a state dict, checked: name -> float32 tensor on the CPU.

    Raises:
        RunError: something else, too many numbers, or numbers that are not finite.
    """
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise RunError(f"{source} holds {type(tree).__name__}; expected a state dict. fix: torch.save(m.state_dict()).")
    tensors = {name: value for name, value in tree.items() if isinstance(value, Tensor)}
    if len(tensors) < len(tree):
        others = shown(name for name in tree if name not in tensors)
        raise RunError(f"{source} holds more than tensors: {others}. fix: torch.save(model.state_dict(), path).")
    if sum(math.prod(tensor.shape) for tensor in tensors.values()) > MAX_NUMBERS:
        raise RunError(f"{source} holds more than {MAX_NUMBERS:,} numbers. fix: a smaller network.")
    for name, tensor in tensors.items():
        is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
        if not is_plain or tensor.device.type != "cpu":
            raise RunError(f"{source}: {name} is not a plain tensor. fix: torch.save(model.state_dict(), path).")
        if not bool(torch.isfinite(tensor).all()):
            raise RunError(f"{source}: {name} holds numbers that are not finite. fix: an earlier save.")
    return {name: tensor.detach().to(torch.float32).contiguous().clone() for name, tensor in tensors.items()}


def plain_json(content: bytes | None, source: str) -> dict[str, Any]:
    """Return a JSON object; {} without one. RunError for anything else."""
    if content is None:
        return {}
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise RunError(f"{source} is not JSON that can be read. fix: save the model again.") from None
    if not isinstance(data, dict):
        raise RunError(f"{source} holds {type(data).__name__}; expected an object. fix: save the model again.")
    return data


def shown(names: Iterable[str]) -> str:
    """Return the first names, and how many follow."""
    names = sorted(names)
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(name[:80] for name in names[:MAX_SHOWN]) + more


class Layout:
    """The tensors of a file, taken by name; unused tensors are an error.

    Args:
        source: file, for messages. library: its name, for messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: str, library: str) -> None:
        self.source, self.library, self._tensors, self._rest = source, library, dict(tensors), dict(tensors)
        self._check_kind()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def has(self, prefix: str) -> bool:
        """Whether a name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self._tensors)

    def _check_kind(self) -> None:
        """Raise NotAvailableYetError for networks with convolutions or a memory."""
        recurrent = [name for name in self._tensors if "lstm" in name.lower() or "weight_hh" in name]
        images = [name for name, tensor in self._tensors.items() if tensor.dim() > 3]
        for names, kind in ((recurrent, "a recurrent policy"), (images, "a policy of images")):
            if names:
                raise NotAvailableYetError(
                    f"{self.source} holds {kind} of {self.library} ({shown(names)}); those of vectors are imported. "
                    "fix: train a new one here."
                )

    def dims(self, name: str) -> int:
        """Return the number of axes of a tensor; 1 without it."""
        return self._tensors[name].dim() if name in self._tensors else 1

    def take(self, name: str, dims: int) -> Tensor:
        """Return a tensor with so many axes.

        Raises:
            RunError: it is missing, empty, or has another number of axes.
        """
        if name not in self._tensors:
            raise self.unknown(f"{name} is missing")
        tensor = self._tensors[name]
        if tensor.dim() != dims or 0 in tensor.shape:
            raise self.unknown(f"{name} has the shape {list(tensor.shape)}")
        self._rest.pop(name, None)
        return tensor

    def finish(self) -> None:
        """Raise RunError if tensors are left unused."""
        if self._rest:
            raise self.unknown("these have no counterpart here")

    def unknown(self, problem: str) -> RunError:
        """Return the error for an unknown layout, which names the unused tensors."""
        names = shown(f"{name} {list(tensor.shape)}" for name, tensor in (self._rest or self._tensors).items())
        return RunError(
            f"{self.source} has an unknown layout of {self.library}: {problem}; tensors: {names}. "
            "fix: a policy of dense layers, as the library builds them."
        )
