"""`dray dev`: a saved driver is restarted, a crash is shown, and nothing is left at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.cmd.local_clusters import read_record, start_ticks

SECONDS_MAX = 120.0
DRIVER = """
import os, sys
from dray.driver import Driver, device, run

class Lamps(Driver):
    name = "lamp.example.com"

    def devices(self):
        return [device(name) for name in {names!r}]

if __name__ == "__main__":
    print("process", os.getpid())
    sys.exit(run(Lamps()))
"""


class Dev:
    """The command, whose output goes to a file."""

    def __init__(self, folder: Path, driver: Path) -> None:
        self._log = folder / "out"
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dray", "dev", str(driver)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"HOME": str(folder)},
            )
        # How far the output was read, that of the driver apart.
        self._read = {False: 0, True: 0}

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for new output that matches; that of the driver comes in its own time."""
        source = pattern.startswith(r"^driver \| ")
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            found = re.compile(pattern, re.MULTILINE).search(self._log.read_text(), self._read[source])
            if found:
                self._read[source] = found.end()
                return found
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no {pattern}:\n{self._log.read_text()}")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    file = tmp_path / "project" / "lamps.py"
    file.parent.mkdir()
    file.write_text(DRIVER.format(names=["red"]))
    return file


@pytest.fixture
def dev(tmp_path: Path, driver: Path) -> Iterator[Dev]:
    running = Dev(tmp_path, driver)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
    running.process.wait(SECONDS_MAX)


def test_a_saved_driver_publishes_its_new_devices(dev: Dev, driver: Path) -> None:
    folder = Path(dev.until(r"starting a cluster in (.+)$")[1])
    first = int(dev.until(r"^driver \| process (\d+)$")[1])
    dev.until(r"^\S+ +lamp\.example\.com .* red$")
    cluster = read_record(folder)
    assert cluster is not None
    driver.write_text(DRIVER.format(names=["red", "blue"]))
    dev.until(r"^dray dev: lamps\.py was changed: the driver is restarted$")
    second = int(dev.until(r"^driver \| process (\d+)$")[1])
    dev.until(r"^\S+ +lamp\.example\.com .* red,blue$")
    assert not start_ticks(first)
    driver.write_text("class:\n")
    dev.until(r"^dray dev: lamps\.py:1: invalid syntax; the driver of the last version goes on$")
    assert start_ticks(second)
    driver.write_text("raise SystemExit('no lamps')\n")
    dev.until(r"^driver \| no lamps$")
    dev.until(r"^dray dev: lamps\.py ended with exit code 1; the cluster goes on, and the next save starts the driver$")
    driver.write_text(DRIVER.format(names=["green"]))
    third = int(dev.until(r"^driver \| process (\d+)$")[1])
    dev.until(r"^\S+ +lamp\.example\.com .* green$")
    dev.process.terminate()
    assert dev.process.wait(SECONDS_MAX) == 0
    assert [pid for pid in (first, second, third, cluster.pid) if start_ticks(pid)] == []
    assert not folder.exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dray", "dev", "nothing.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "dray dev: there is no file nothing.py\n")
