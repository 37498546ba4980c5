"""The report of an audit: one page that opens anywhere, and the same tables and figures as files."""

from equipoise.report.figures import write_figures
from equipoise.report.page import write_report
from equipoise.report.tables import write_tables

__all__ = ["write_figures", "write_report", "write_tables"]
