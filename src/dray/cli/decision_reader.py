"""Reads the record of decisions: from the API server of `dray up`, or from a scheduler that runs by itself."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Final

from dray.sim.snapshot import SnapshotError

PATH: Final = "/debug/decisions"
TIMEOUT_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_NOT_THERE: Final = (
    "the API server has no record of decisions: its scheduler runs in a process of its own, or is not Dray's. "
    "Specify the address of `dray scheduler`, as in --scheduler=http://127.0.0.1:10259"
)


def add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a scheduler in a process of its own."""
    parser.add_argument(
        "--scheduler",
        default="",
        metavar="URL",
        help="the address of `dray scheduler`; default: the scheduler in the process of the API server",
    )
    parser.add_argument(
        "--token", default="", help="bearer token for --scheduler; default: $DRAY_TOKEN, then that of the kubeconfig"
    )


def read_decisions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the answer of the scheduler: `decisions`, the newest first, and the number of those that are hidden."""
    # Imported on use: `dray explain --help` needs none of it.
    import asyncio

    from dray.cli.cluster import read_page

    if arguments.scheduler:
        return _from_scheduler(arguments)
    return asyncio.run(read_page(arguments.kubeconfig, arguments.context, PATH, missing=_NOT_THERE))


def _from_scheduler(arguments: argparse.Namespace) -> dict[str, Any]:
    import urllib.error
    import urllib.request
    from urllib.parse import urlsplit

    from dray.cli.cluster import load_user_access

    url = arguments.scheduler if "//" in arguments.scheduler else f"http://{arguments.scheduler}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise SnapshotError(f"--scheduler: {url!r} is no http or https address")
    token = arguments.token or os.environ.get("DRAY_TOKEN") or ""
    if not token:
        token = load_user_access(arguments.kubeconfig, arguments.context).token or ""
    if not token:
        raise SnapshotError(
            "the kubeconfig has no token, which the scheduler needs: create one with "
            "`kubectl create token SERVICE-ACCOUNT`, and pass it with --token or $DRAY_TOKEN"
        )
    request = urllib.request.Request(f"{url.rstrip('/')}{PATH}", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - checked above
            return dict(json.loads(response.read(ANSWER_BYTES_MAX)))
    except urllib.error.HTTPError as error:
        raise SnapshotError(f"{url}: {error.read(4096).decode(errors='replace').strip()}") from error
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{url}: {error}") from error
