"""One HTML page of runs or of a study."""

from stepjepa.report.run import ReportOptions, ReportResult, report

__all__ = ["ReportOptions", "ReportResult", "report"]
