"""What tests have to say goes under the results, also when they ran in other processes."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every `summary` that a test recorded, and which tests needed a second try."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"needed a second try: {report.nodeid}")
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "summary":
                    terminalreporter.write_line(value)
