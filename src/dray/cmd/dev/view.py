"""The live view of `dray dev`: slices, devices and claims, as the tables of other commands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.types.resource_v1 import ResourceSlice
from dray.cli import claims, devices
from dray.cli.output import Column, render
from dray.sim.claims import claim_rows
from dray.sim.physical_devices import all_rows
from dray.sim.snapshot import Snapshot

NO_SLICES: Final = "No slices: the driver has published no devices.\n"
# Of the tables, on however low a screen.
TABLE_LINES_MIN: Final = 5
KINDS: Final = tuple(dict.fromkeys((*devices.KINDS, *claims.KINDS)))


def tables(snapshot: Snapshot, now: datetime, *, colour: bool) -> str:
    """Return the tables of a snapshot; what there is none of is said in one line."""
    slices, held = snapshot.slices, claim_rows(snapshot)
    found = all_rows(snapshot)
    parts = (
        render(slices, _SLICE_COLUMNS, colour=colour) if slices else NO_SLICES,
        render(found, devices.columns(now, found), colour=colour) if found else "",
        render(held, claims.columns(now), colour=colour) if held else "No claims found.\n",
    )
    return "\n".join(filter(None, parts))


def screen(status: str, tables_text: str, output: Sequence[str], height: int) -> str:
    """Return the text of a screen of that many lines; tables that are too long for it are cut."""
    said = [f"driver | {line}" for line in output]
    lines = tables_text.splitlines()
    # Empty lines between the parts, one for the note, and one for the cursor.
    space = max(height - len(status.splitlines()) - len(said) - 4, TABLE_LINES_MIN)
    if len(lines) > space:
        lines = [*lines[:space], f"… and {len(lines) - space} more lines: see dray devices and dray claims"]
    return "\n\n".join("\n".join(part) for part in ([status], lines, said) if part) + "\n"


_SLICE_COLUMNS: Final[list[Column[ResourceSlice]]] = [
    Column("SLICE", lambda item: item.metadata.name or ""),
    Column("DRIVER", lambda item: item.spec.driver),
    Column("POOL", lambda item: item.spec.pool.name),
    Column("GENERATION", lambda item: str(item.spec.pool.generation)),
    Column("DEVICES", lambda item: ",".join(device.name for device in item.spec.devices or ())),
]
