"""Sets of completion indexes in the form `1,3-5,7`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from dray.api.types.core_v1 import Pod

INDEX: Final = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str | None, limit: int) -> set[int]:
    """Parse the indexes below the limit; invalid parts are ignored."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            continue
        found.update(range(int(first), min(int(last or first) + 1, limit)))
    return found


def format_indexes(indexes: Collection[int]) -> str:
    """Format indexes; consecutive ones as ranges."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] + 1 == index:
            parts[-1][1:] = [index]
        else:
            parts.append([index])
    return ",".join("-".join(str(end) for end in part) for part in parts)


def index_of(pod: Pod) -> int | None:
    """Return the Pod's completion index."""
    return number_in(pod.metadata.annotations, INDEX)


def number_in(annotations: Mapping[str, str], key: str) -> int | None:
    """Return the number in an annotation."""
    text = annotations.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else None
