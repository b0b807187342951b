"""Records of a run, and the sinks that write, display or send them."""

from agilerl.telemetry.callbacks import Callback
from agilerl.telemetry.console import LiveSink, PlainSink, TqdmSink, console_sink
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.files import CsvSink, JsonlSink
from agilerl.telemetry.mlflow_tracker import MLflowSink
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, MemberRecord, RunPlan, Sink, Sinks
from agilerl.telemetry.tracker_names import TRACKERS, tracker_name, tracker_of
from agilerl.telemetry.trackers import TensorBoardSink, TrackioSink, WandbSink

__all__ = [
    "TRACKERS", "BaseSink", "Birth", "Callback", "CsvSink", "Evaluation", "GenerationRecord", "JsonlSink", "LiveSink",
    "MLflowSink", "MemberRecord", "PlainSink", "RunPlan", "Sink", "Sinks", "TensorBoardSink", "TqdmSink", "TrackioSink",
    "WandbSink", "console_sink", "tracker_name", "tracker_of",
]  # fmt: skip
