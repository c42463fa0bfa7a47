"""`--controllers` selects controllers by Kubernetes' names."""

from __future__ import annotations

import pytest

from dray.cmd.controllers import check_controllers, is_enabled
from dray.runtime.settings import SettingsError


@pytest.mark.parametrize(
    ("chosen", "enabled"),
    [
        (("*",), True),
        (("job-controller",), True),
        (("deployment-controller",), False),
        (("*", "-job-controller"), False),
        (("-job-controller",), False),
        ((), False),
    ],
)
def test_choice(chosen: tuple[str, ...], *, enabled: bool) -> None:
    check_controllers(chosen)
    assert is_enabled("job-controller", chosen) is enabled


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        SettingsError, match='"nonsense" is not in the list of known controllers: bootstrap-signer-controller,'
    ):
        check_controllers(("*", "nonsense"))
