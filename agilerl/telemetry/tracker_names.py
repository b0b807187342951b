"""Trackers by name, as `agilerl train --track NAME` has them."""

from __future__ import annotations

from agilerl.errors import ConfigError, unknown_choice
from agilerl.telemetry.mlflow_tracker import MLflowSink
from agilerl.telemetry.trackers import Tracker, TrackioSink, WandbSink

TRACKERS: dict[str, type[Tracker]] = {each.name: each for each in (WandbSink, MLflowSink, TrackioSink)}
DEFAULT_TRACKER = WandbSink.name  # of --track without a name


def tracker_name(track: bool | str) -> str:
    """The tracker that `track` asks for: its name, the default one for True, "" for False.

    Raises:
        ConfigError: an unknown name.
    """
    name = (DEFAULT_TRACKER if track else "") if isinstance(track, bool) else track
    if name and name not in TRACKERS:
        raise ConfigError(unknown_choice("tracker", name, TRACKERS))
    return name
