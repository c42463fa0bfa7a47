"""What tests have to say goes under the results, also when they ran in other processes."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from dray.cmd.main import GC_THRESHOLDS

# Without compiled files, each of the hundreds of processes that tests start would compile Dray again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As the commands set it: thousands of tests make a heap that the default collects too often.
gc.set_threshold(*GC_THRESHOLDS)


# The suites of docs/conformance.md: `make test PYTEST_ARGS='-m api_cel'` runs one. Single tests are marked themselves.
SUITES = {
    "tests/conformance/allocator/": "api_allocator",
    "tests/conformance/api/": "api_kinds",
    "tests/conformance/cel/": "api_cel",
    "tests/e2e/conformance/": "driver_conformance",
    "tests/golden/": "api_kinds",
    "tests/unit/allocator/": "api_allocator",
    "tests/unit/api/defaults/": "api_kinds",
    "tests/unit/api/validation/": "api_kinds",
    "tests/unit/apiserver/admission/": "api_kinds",
    "tests/unit/apiserver/registry/": "api_kinds",
    "tests/unit/cel/": "api_cel",
    "tests/unit/cli/conformance/": "driver_conformance",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of a suite its mark."""
    for item in items:
        for folder, mark in SUITES.items():
            if item.nodeid.startswith(folder):
                item.add_marker(mark)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the collector from looking at the collected tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Some commands silence the log of the components that they run."""
    yield
    logging.getLogger("dray").propagate = True


@pytest.fixture(autouse=True)
def _collect_what_may_warn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the sockets that a test may leave open at its end, and not during another one, which would fail."""
    yield
    ignored = (mark.args[0] for mark in request.node.iter_markers("filterwarnings"))
    if "ignore::ResourceWarning" in ignored:
        gc.collect()


class FailuresAtOnce:
    """Prints a failure when it happens, and not only at the end, which may be a quarter of an hour away."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the failure of a test, its set-up or its clean-up."""
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.line(f"FAILED {report.nodeid} ({report.when})", red=True)
            self._terminal.line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once where there is a terminal: not in the processes that run the tests of others."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every `summary` that a test recorded, and which tests needed a second try."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"needed a second try: {report.nodeid}")
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "summary":
                    terminalreporter.write_line(value)
