"""Where the answers of a real kube-apiserver are kept, beside the checkout or where DRAY_GOLDEN says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The directory with probe.py and the recorded answers."""
    directory = Path(os.environ.get("DRAY_GOLDEN", _BESIDE))
    if not (directory / "probe.py").is_file():
        pytest.skip(f"no recorded answers in {directory}; set DRAY_GOLDEN to the directory that has them")
    return directory
