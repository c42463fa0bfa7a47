from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.local_server import Local, local_server


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Local]:
    async with local_server(tmp_path) as local:
        yield local
