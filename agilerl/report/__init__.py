"""Report of a run as one HTML page, from its directory, without a network, JavaScript or torch."""

from agilerl.report.page import render, write_report
from agilerl.runs.records import Member, RunRecords

__all__ = ["Member", "RunRecords", "render", "write_report"]
