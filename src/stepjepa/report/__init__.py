"""One HTML page of what runs and studies have left on disk: `page.report`."""

from stepjepa.report.page import ReportOptions, ReportResult, report

__all__ = ["ReportOptions", "ReportResult", "report"]
