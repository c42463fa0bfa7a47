from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.node_devices.harness import short_folder


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as path:
        yield path
