"""A run as one page: what its directory holds, drawn without a network, without JavaScript and without torch."""

from agilerl.report.page import render, write_report
from agilerl.report.records import Member, RunRecords

__all__ = ["Member", "RunRecords", "render", "write_report"]
