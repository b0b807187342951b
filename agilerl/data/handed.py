"""Write data sets that were passed as arrays to files that a run can reload."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agilerl.data.dataset import READ, read_dataset
from agilerl.data.recording import write_dataset
from agilerl.errors import ConfigError


class HandedData:
    """Write an in-memory data set to a temporary file, which a run moves to its directory.

    A context manager: files not used by a run are deleted on exit.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> HandedData:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def file_of(self, dataset: object) -> str | None:
        """Return the path of a data set, writing it first if it is not a path.

        The file holds the rows as read by `read_dataset`, so that training from it is identical to training from them.

        Raises:
            ConfigError, ShapeError: see `read_dataset`; also without steps. RunError: no space for the file.
        """
        if dataset is None or isinstance(dataset, str):
            return dataset
        if isinstance(dataset, os.PathLike):
            return str(os.fspath(dataset))
        data = read_dataset(dataset)
        if not len(data):
            raise ConfigError("the data set holds no transition. fix: steps with their next observations.")
        arrays = data.arrays()
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="agilerl-data-")
        is_flat = not any(isinstance(part, Mapping) for part in arrays.values())
        suffix = ".npz" if is_flat and importlib.util.find_spec("h5py") is None else ".h5"
        path = Path(self._folder.name) / f"dataset{suffix}"
        read = {"left_out": data.left_out, "missing": list(data.missing), "is_stored": data.is_stored}
        about = {name: value for name, value in data.about.items() if value is not None}
        path.unlink(missing_ok=True)
        try:
            write_dataset(path, arrays, {**about, READ: read})
        except OSError as error:
            where = f"{self._folder.name} ({error.strerror})"
            raise ConfigError(f"the data set cannot be written to {where}. fix: TMPDIR with more room.") from error
        self._path = str(path)
        return self._path

    def holds(self, path: str | None) -> bool:
        """Whether the path is that of the file written here."""
        return path is not None and path == self._path

    def in_config(self, config: Any) -> Any:
        """Replace an object in `training.dataset` of a configuration by the path of its file."""
        training = config.get("training") if isinstance(config, Mapping) else None
        if not isinstance(training, Mapping) or "dataset" not in training:
            return config
        return {**config, "training": {**training, "dataset": self.file_of(training["dataset"])}}
