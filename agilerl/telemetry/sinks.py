"""Every sink under one name."""

from agilerl.telemetry.console import PlainSink, console_sink
from agilerl.telemetry.fanout import BaseSink, Sinks
from agilerl.telemetry.files import CsvSink, JsonlSink
from agilerl.telemetry.live import LiveSink
from agilerl.telemetry.progress import TqdmSink
from agilerl.telemetry.trackers import TensorBoardSink, WandbSink

__all__ = [
    "BaseSink",
    "CsvSink",
    "JsonlSink",
    "LiveSink",
    "PlainSink",
    "Sinks",
    "TensorBoardSink",
    "TqdmSink",
    "WandbSink",
    "console_sink",
]
