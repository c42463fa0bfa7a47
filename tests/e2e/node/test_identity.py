"""A node agent that cannot become a node says why: its keys are made in a child, whose words arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_why_there_is_no_identity_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dray", "node", f"--data-dir={tmp_path}", f"--root-dir={tmp_path / 'kubelet'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"dray node: --kubeconfig is needed: there is no cluster in {tmp_path}"
