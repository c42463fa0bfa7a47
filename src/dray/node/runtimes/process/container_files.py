"""The files of a container: what its agent records, and how its shim is watched."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from dray.node.runtimes.runtime import ContainerRecord, Exit
from dray.node.streams.listening_ports import descendants
from dray.node.untrusted_files import write_private


def read_exit(folder: Path) -> Exit | None:
    """Return how the container ended, if its shim has said so."""
    try:
        content = orjson.loads((folder / "exit.json").read_bytes())
    except (OSError, ValueError):
        return None
    return Exit(content["code"], moment(content["finishedAt"]), content.get("signal", 0))


def open_fifo(folder: Path) -> int:
    """Return the end of a shim's FIFO at which its death can be seen."""
    return os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)


def end_group(folder: Path) -> None:
    """Kill the process group of a container whose shim is gone."""
    try:
        content = orjson.loads((folder / "record.json").read_bytes())
        os.killpg(content["pid"], signal.SIGKILL)
    except (OSError, ValueError, KeyError):
        return


def processes_of(folders: Iterable[Path]) -> set[int]:
    """Return the processes of containers: their shims and everything below them."""
    found = set()
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError):
            first = int(orjson.loads((folder / "record.json").read_bytes())["pid"])
            found.add(first)
            stat = Path(f"/proc/{first}/stat").read_text(encoding="utf-8", errors="replace")
            # Orphans are children of the shim.
            found.add(int(stat.rpartition(")")[2].split()[1]))
    return descendants(found - {1})


def moment(nanoseconds: int) -> datetime:
    """Return a time of a shim."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file that only the agent can read."""
    write_private(path, orjson.dumps(content, option=orjson.OPT_INDENT_2))


_PLAIN: Final = ("id", "pod_uid", "pod_namespace", "pod_name", "name", "attempt", "image", "image_id")


def to_file(record: ContainerRecord) -> dict[str, Any]:
    """Return the content of `record.json`."""
    content: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    content["started_at"] = record.started_at.timestamp()
    content["annotations"] = dict(record.annotations)
    if record.exit is not None:
        ended = record.exit
        content["exit"] = {
            "code": ended.code,
            "finished_at": ended.finished_at.timestamp(),
            "signal": ended.signal,
            "reason": ended.reason,
            "message": ended.message,
        }
    return content


def from_file(content: dict[str, Any]) -> ContainerRecord:
    """Read the content of `record.json`; raises KeyError."""
    ended = content.get("exit")
    if ended is not None:
        ended = Exit(**{**ended, "finished_at": datetime.fromtimestamp(ended["finished_at"], UTC)})
    started = datetime.fromtimestamp(content["started_at"], UTC)
    annotations = content.get("annotations") or {}
    plain = {name: content[name] for name in _PLAIN}
    return ContainerRecord(**plain, started_at=started, exit=ended, annotations=annotations)
