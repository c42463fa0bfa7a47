"""`dray scheduler` that dies at a chosen write as by a power cut: the file named first says which.

Places are `before N` and `after N`, N being the number of a write of a Pod or a claim since the start; events and
leases do not count. The file is removed by the crash.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dray.client.rest import RestClient
from dray.cmd.main import main

WRITES = ("create", "update", "update_status", "patch", "delete", "create_subresource")
COUNTED = ("pods", "resourceclaims")


def install(file: Path) -> None:
    number = 0

    def reached(place: str) -> None:
        if file.exists() and file.read_text() == place:
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(function: Any) -> Any:
        async def called(client: RestClient, resource: Any, *arguments: Any, **keywords: Any) -> Any:
            nonlocal number
            if resource.plural not in COUNTED:
                return await function(client, resource, *arguments, **keywords)
            number += 1
            own = number
            reached(f"before {own}")
            answer = await function(client, resource, *arguments, **keywords)
            reached(f"after {own}")
            return answer

        return called

    for name in WRITES:
        setattr(RestClient, name, wrapped(getattr(RestClient, name)))


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.exit(main(["scheduler", *sys.argv[2:]]))
