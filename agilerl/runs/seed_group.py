"""The folder of several runs that differ by their seed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.config import Manifest, dump_yaml, load_manifest
from agilerl.core.files import write_atomic
from agilerl.core.hostile import read_json
from agilerl.errors import AgileRLError, RunError
from agilerl.runs.directory import folder_name, next_folder
from agilerl.runs.names import CONFIG, GROUP, is_group, is_run
from agilerl.runs.request import SHARED

SETTINGS: dict[str, Any] = {
    "device": str, "evolution": bool, "tensorboard": bool, "track": bool | str, "imports": list, "test_episodes": int,
}  # fmt: skip


@dataclass(frozen=True)
class SeedGroup:
    """A folder of runs that differ by their seed: group.json, config.yaml, and `seed-<n>/` for each.

    Attributes:
        path: the folder. seeds: in order. settings: fields of the `RunRequest` that all share.
        changes: KEY=VALUE settings with which the group was resumed, for runs that have not gone on with them yet.
    """

    path: Path
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    changes: tuple[str, ...] = ()

    @classmethod
    def create(
        cls, manifest: Manifest, seeds: Sequence[int], out: str | os.PathLike[str], **settings: Any
    ) -> SeedGroup:
        """Create the next free folder `<out>/<env>/<algo>-seeds-<nnnn>`; settings: see the attribute."""
        name = f"{manifest.algorithm.name.lower()}-seeds"
        path = next_folder(Path(out) / folder_name(manifest.environment.name), name)
        group = cls(path, tuple(seeds), settings)
        group.write(manifest)
        return group

    def write(self, manifest: Manifest) -> None:
        """Write config.yaml, which all runs share, and group.json."""
        write_atomic(self.path / CONFIG, dump_yaml(manifest))
        content: dict[str, Any] = {"seeds": self.seeds, "settings": self.settings}
        content |= {"changes": self.changes} if self.changes else {}
        write_atomic(self.path / GROUP, json.dumps(content, indent=2) + "\n")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SeedGroup:
        """Open the group at `path`.

        Raises:
            RunError: a damaged file.
        """
        folder = Path(path)
        try:
            content = read_json(folder / GROUP)
            seeds, settings = tuple(int(seed) for seed in content["seeds"]), dict(content["settings"])
            changes = tuple(str(text) for text in content.get("changes", ()))
            wrong = [name for name, kind in SETTINGS.items() if not isinstance(settings[name], kind)]
            if wrong or not seeds or settings.keys() - SHARED != SETTINGS.keys() - SHARED:
                raise ValueError(f"its {' and '.join(wrong) or 'seeds or settings'} are damaged")
            return cls(folder, seeds, settings, changes)
        except (AgileRLError, OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{folder / GROUP} cannot be read ({error}). fix: resume its runs one by one.") from error

    def run_path(self, seed: int) -> Path:
        """The run directory of a seed."""
        return self.path / f"seed-{seed}"

    @property
    def run_paths(self) -> list[Path]:
        """The directories of the runs that have begun."""
        paths = map(self.run_path, self.seeds)
        return [path for path in paths if is_run(path)]

    def manifest(self) -> Manifest:
        """The resolved configuration that all share."""
        return load_manifest(self.path / CONFIG)


def with_groups(paths: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """The paths, with the runs of a group in place of its folder."""
    return [run for path in paths for run in (SeedGroup.open(path).run_paths if is_group(path) else [path])]
