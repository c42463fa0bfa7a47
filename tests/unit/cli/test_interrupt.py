"""A command that is interrupted ends without a traceback."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.cli import top
from dray.cmd.main import main


def test_ctrl_c_ends_a_command_with_the_exit_code_of_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "main", interrupted)
    assert main(["top"]) == 130
