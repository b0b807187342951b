"""Who takes part in a run: the settings for workers, as asked for and as recorded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.config import Manifest
from agilerl.core.env_ids import is_language_id
from agilerl.core.threads import available_cores
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.runs.names import command
from agilerl.workers.connection import LOCAL, RUNNING, check_installed

NO_RAY = "none"
MAX_SPARE = 4  # processes of a run that was not told how many: few episodes are left for each beyond them


@dataclass(frozen=True)
class Workers:
    """Who works beside this process.

    Attributes:
        count: processes that work, this one included; "auto", on Ray only, for one per CPU of the cluster.
        ray: "local", "auto" or the address of a cluster; None for processes of this machine.
        allow_insecure_ray: see `workers.cluster.connect`.
        most: with `count` 1, processes that may work once the run has taken a while: `workers.later`.
    """

    count: int | str = 1
    ray: str | None = None
    allow_insecure_ray: bool = False
    most: int = 1

    def settings(self) -> dict[str, Any]:
        """Return what a run records: how a resumed one goes on."""
        count = {} if self.count == 1 else {"workers": self.count}
        return count if self.ray is None else {**count, "ray": self.ray}


ALONE = Workers()


def spare_cores(manifest: Manifest, device: str) -> int:
    """Number of processes that a run may use which was not told how many; 1 where more would not help."""
    env, is_plain = manifest.environment, manifest.training.fitness == "returns" and manifest.evolution.mode != "async"
    if device != "cpu" or not is_plain or env.healing or env.num_workers or is_language_id(env.name):
        return 1
    return min(available_cores(), MAX_SPARE)


def check_lanes(manifest: Manifest, workers: Workers) -> None:
    """Raise NotAvailableYetError for workers beside lanes that do not wait for each other."""
    if manifest.environment.asynchronous and workers.count != 1:
        raise NotAvailableYetError(
            "environment.asynchronous=true (lanes that do not wait for each other) is not available with workers yet; "
            f"got workers={workers.count}. fix: workers=1, or environment.asynchronous=false."
        )


def workers_of(workers: int | str | None, ray: str | None = None, allow_insecure_ray: bool = False) -> Workers:
    """Return the workers for a number or "auto" (one for each core; on Ray for each of its CPUs); None: as needed.

    Raises:
        ConfigError: neither of the two, or Ray without workers or not installed.
    """
    if workers is None:
        workers = 1 if ray in (None, NO_RAY) else "auto"
    if workers != "auto" and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers must be at least 1, or 'auto'; got {workers!r}. fix: workers='auto'.")
    if ray is None or ray == NO_RAY:
        return Workers(available_cores() if workers == "auto" else workers)
    if not isinstance(ray, str) or not ray:
        raise ConfigError(f"ray must be 'local', 'auto' or an address HOST:PORT; got {ray!r}. fix: ray='local'.")
    if workers == 1:
        raise ConfigError(f"ray={ray!r} is for workers, and workers=1 is this process alone. fix: workers='auto'.")
    check_installed()
    return Workers(workers, ray=ray, allow_insecure_ray=allow_insecure_ray)


def resumed_workers(
    start: Mapping[str, Any], folder: Path, workers: int | str | None, ray: str | None, allow_insecure_ray: bool
) -> Workers:
    """Return the workers of a run that goes on; None follows its record.

    An address is never taken from a file: a cluster can run code in the processes that are connected to it.

    Raises:
        ConfigError: the run used a cluster at an address, or see `workers_of`.
    """
    recorded = start.get("ray")
    if workers == 1:
        recorded = None
    if ray is None and recorded is not None:
        if recorded not in (LOCAL, RUNNING):
            raise ConfigError(
                f"{folder} was trained by workers of the Ray cluster {recorded}. fix: {command('resume', folder)} "
                f"--ray {shlex.quote(str(recorded))}, or --ray none for processes of this machine."
            )
        ray = str(recorded)
    count = (start.get("workers") or 1) if workers is None else workers
    return workers_of(count if count == "auto" else int(count), ray, allow_insecure_ray)
