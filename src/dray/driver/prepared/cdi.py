"""CDI specs: one file per claim, with one CDI device per prepared device that has edits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.cdi import NO_EDITS, VERSION, CdiDevice, QualifiedName, Spec, minimum_version, spec_name
from dray.api.document import UID
from dray.driver.claims import PreparedDevice
from dray.driver.prepared.checkpoint import AnsweredDevice

# The class of `vendor/class`; the vendor is the driver's name.
CDI_CLASS: Final = "claim"


def claim_spec(
    driver: str, uid: UID, devices: Sequence[PreparedDevice]
) -> tuple[Spec | None, tuple[AnsweredDevice, ...]]:
    """Return the spec to write, if any, and the devices of the answer."""
    entries: list[CdiDevice] = []
    answers: list[AnsweredDevice] = []
    for position, prepared in enumerate(devices):
        names = prepared.cdi_device_ids
        if prepared.edits != NO_EDITS:
            # A device may be allocated twice (shares, admin access): the position makes names unique.
            entry = CdiDevice(name=f"{prepared.device.name}-{uid}-{position}", container_edits=prepared.edits)
            entries.append(entry)
            names = (*names, str(QualifiedName(vendor_of(driver), CDI_CLASS, entry.name)))
        answers.append(
            AnsweredDevice(
                (prepared.device.request.partition("/")[0],),
                prepared.device.pool,
                prepared.device.name,
                prepared.device.share_id,
                names,
            )
        )
    if not entries:
        return None, tuple(answers)
    spec = Spec(cdi_version=VERSION, kind=f"{vendor_of(driver)}/{CDI_CLASS}", devices=tuple(entries))
    return msgspec.structs.replace(spec, cdi_version=minimum_version(spec)), tuple(answers)


def vendor_of(driver: str) -> str:
    """Return the CDI vendor of a driver; unlike driver names, vendors must not begin with a digit."""
    return driver if driver[:1].isalpha() else f"driver-{driver}"


def claim_file(driver: str, uid: UID) -> str:
    """Return the file name of a claim's spec."""
    return spec_name(driver, CDI_CLASS, uid)
