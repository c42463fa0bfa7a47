"""The same cases for a real kube-scheduler, whose binary `KUBE_SCHEDULER` names, and for Dray's scheduler.

`DIFFERENTIAL_SEEDS=1000-1099` chooses the cases; others than the recorded ones are the point of it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.differential.cases import make_case
from tests.differential.compare import compare_case
from tests.differential.kube_scheduler import BINARY, ask, read_scores

_FIRST, _, _LAST = os.environ.get("DIFFERENTIAL_SEEDS", "1000-1009").partition("-")


@pytest.mark.skipif(not BINARY, reason="KUBE_SCHEDULER names no binary")
@pytest.mark.parametrize("seed", range(int(_FIRST), int(_LAST or _FIRST) + 1))
def test_both_decide_alike(seed: int, tmp_path: Path) -> None:
    case = make_case(seed)
    answers = asyncio.run(ask(tmp_path, case, "-v=10"))
    assert compare_case(case, answers, read_scores(tmp_path)).unexplained == []
