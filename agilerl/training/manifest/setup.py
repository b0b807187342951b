"""A run that is about to start: its request, what follows from it, and what is recorded of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agilerl.config import Manifest
from agilerl.runs.directory import RunDirectory
from agilerl.runs.request import RECORDED, RunRequest
from agilerl.telemetry.console import console_sink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.tracker_names import TRACKERS
from agilerl.telemetry.trackers import TensorBoardSink
from agilerl.training.deadline import Deadline
from agilerl.training.manifest.worker_settings import ALONE, Workers


@dataclass(frozen=True)
class Setup:
    """A run that is about to start: the request, and what follows from it.

    Attributes:
        manifest: with what its environment and a budget in minutes settle. request: for a resumed run with what its
            record settles. device: of the networks.
        track: name of a tracker, or "". track_id: of the run at the tracker.
        parent: the run whose agents the founders are copies of. data: file name of data that belongs to the run.
        arrivals: in asynchronous mode, the order in which shards must arrive.
    """

    manifest: Manifest
    request: RunRequest
    device: str
    track: str = ""
    track_id: str = ""
    workers: Workers = ALONE
    deadline: Deadline | None = None
    parent: Mapping[str, Any] | None = None
    data: str | None = None
    arrivals: tuple[int, ...] = ()

    def start(self) -> dict[str, Any]:
        """Start settings, as stored in run.json and every checkpoint."""
        asked = self.request
        settings = {"evolution": asked.evolution, "device": self.device, "env_given": asked.env is not None}
        optional: dict[str, Any] = {} if self.parent is None else {"parent": dict(self.parent)}
        optional |= {"imports": list(asked.imports)} if asked.imports else {}
        optional |= {"own_data": self.data} if self.data else {}
        optional |= self.workers.settings()
        optional |= asked.changed(RECORDED)
        optional |= {"track": self.track_id, "tracker": self.track} if self.track else {}
        optional |= {"arrivals": list(self.arrivals)} if self.arrivals else {}
        optional |= {"script": [asdict(taken) for taken in asked.script]} if asked.script else {}
        return {**settings, "argv": list(sys.argv if asked.argv is None else asked.argv), **optional}

    def sinks_of(self, directory: RunDirectory | None) -> list[Sink]:
        """Build the sinks: the console, the user's sinks, the directory, the trackers."""
        path = None if directory is None else str(directory.path)
        sinks: list[Sink] = [console_sink(self.request.verbose, path=path), *self.request.sinks]
        sinks += [] if directory is None else directory.sinks()
        if self.request.tensorboard:
            sinks.append(TensorBoardSink((directory.path if directory else Path("runs")) / "tb"))
        if self.track:
            sinks.append(TRACKERS[self.track].for_run(self.manifest.as_dict(), self.track_id))
        return sinks

    def facts(self) -> dict[str, Any]:
        """Facts for every checkpoint; the configuration is stored as text to preserve the order of its keys."""
        config = {"config": json.dumps(self.manifest.as_dict()), "config_hash": self.manifest.hash()}
        return {**config, "start": self.start()}
