"""Records of a run, and the sinks that write, display or send them."""

from agilerl.telemetry.callbacks import Callback
from agilerl.telemetry.console import LiveSink, PlainSink, TqdmSink, console_sink
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.files import CsvSink, JsonlSink
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, MemberRecord, RunPlan, Sink, Sinks
from agilerl.telemetry.trackers import TensorBoardSink, WandbSink

__all__ = [
    "BaseSink", "Birth", "Callback", "CsvSink", "Evaluation", "GenerationRecord", "JsonlSink", "LiveSink",
    "MemberRecord", "PlainSink", "RunPlan", "Sink", "Sinks", "TensorBoardSink", "TqdmSink", "WandbSink", "console_sink",
]  # fmt: skip
