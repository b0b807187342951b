"""Report of a run as one HTML page, from its directory, without a network, JavaScript or torch."""

from agilerl.runs.records import Member, RunRecords
from agilerl.views.report.page import render, write_report

__all__ = ["Member", "RunRecords", "render", "write_report"]
