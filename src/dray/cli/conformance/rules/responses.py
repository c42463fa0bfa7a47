"""A driver's responses, independent of the service version, and rules for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dray.api.document import Document


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as kubelet refers to it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class PreparedDevice:
    """A device of a response."""

    pool: str
    name: str
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimResponse:
    """The entry of one claim in a response."""

    error: str = ""
    devices: tuple[PreparedDevice, ...] = ()


Responses: TypeAlias = Mapping[str, ClaimResponse]


def entry_problems(refs: Sequence[ClaimRef], responses: Responses) -> Iterator[str]:
    """Every claim must have an entry, and there must be no others."""
    requested = {ref.uid for ref in refs}
    for ref in refs:
        if ref.uid not in responses:
            yield f"no entry for claim {ref} (uid {ref.uid})"
    for uid in sorted(set(responses) - requested):
        yield f"unexpected entry for uid {uid}"


def success_problems(refs: Sequence[ClaimRef], responses: Responses) -> Iterator[str]:
    """Every claim must have an entry without an error."""
    yield from entry_problems(refs, responses)
    for ref in refs:
        if ref.uid in responses and responses[ref.uid].error:
            yield f'claim {ref} has an error: "{responses[ref.uid].error}"'


def refusal_problems(refs: Sequence[ClaimRef], responses: Responses) -> Iterator[str]:
    """Every claim must have an entry with an error."""
    yield from entry_problems(refs, responses)
    for ref in refs:
        if ref.uid in responses and not responses[ref.uid].error:
            yield f"claim {ref} has no error"


def device_problems(driver: str, allocation: Document, entry: ClaimResponse) -> Iterator[str]:
    """The devices must be those of the allocation, with the requests they were allocated for."""
    requests: dict[tuple[str, str], set[str]] = {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result["driver"] == driver:
            requests.setdefault((result["pool"], result["device"]), set()).add(result["request"].partition("/")[0])
    for device in entry.devices:
        allowed = requests.get((device.pool, device.name))
        if allowed is None:
            yield f"device {device} is not in the claim's allocation"
            continue
        for request in device.requests:
            if request not in allowed:
                yield f'device {device} has the request name "{request}", not one of {", ".join(sorted(allowed))}'


def difference_problems(first: ClaimResponse, second: ClaimResponse, when: str) -> Iterator[str]:
    """Two responses for the same claim must have the same devices."""
    before, after = sorted(first.devices), sorted(second.devices)
    if before != after:
        yield f"{when} the response was {_listed(after)}, previously {_listed(before)}"


def _listed(devices: Sequence[PreparedDevice]) -> str:
    return ", ".join(f"{device} [{' '.join(device.cdi_ids)}]" for device in devices) or "no devices"
