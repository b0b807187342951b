"""What a run reports and where it goes: records, and the sinks that write, draw or send them."""

from agilerl.telemetry.console import PlainSink, console_sink
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.fanout import BaseSink, Sinks
from agilerl.telemetry.files import CsvSink, JsonlSink
from agilerl.telemetry.live import LiveSink
from agilerl.telemetry.progress import TqdmSink
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan, Sink
from agilerl.telemetry.trackers import TensorBoardSink, WandbSink

__all__ = [
    "BaseSink",
    "Birth",
    "CsvSink",
    "Evaluation",
    "GenerationRecord",
    "JsonlSink",
    "LiveSink",
    "MemberRecord",
    "PlainSink",
    "RunPlan",
    "Sink",
    "Sinks",
    "TensorBoardSink",
    "TqdmSink",
    "WandbSink",
    "console_sink",
]
