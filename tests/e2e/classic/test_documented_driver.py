"""The driver of docs/classic-claims.md; tests/e2e/docs runs the commands of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.classic.machines import TOP

PAGE = TOP / "docs" / "classic-claims.md"


def test_the_driver_of_the_page(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "driver.py").write_text(source)
    for part in ("controller", "node"):
        done = subprocess.run([sys.executable, tmp_path / "driver.py", part, "--help"], capture_output=True, check=True)
        assert b"--kubeconfig" in done.stdout
    done = subprocess.run([sys.executable, tmp_path / "driver.py"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"the first argument must be controller or node\n")
