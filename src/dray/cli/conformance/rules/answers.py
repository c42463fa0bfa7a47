"""A driver's answers, whatever the version of the service, and what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dray.api.document import Document


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class PreparedDevice:
    """A device of an answer."""

    pool: str
    name: str
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """The answer for one claim."""

    error: str = ""
    devices: tuple[PreparedDevice, ...] = ()


Answers: TypeAlias = Mapping[str, Entry]


def entry_problems(refs: Sequence[ClaimRef], answers: Answers) -> Iterator[str]:
    """Every claim must be answered, and nothing else."""
    asked = {ref.uid for ref in refs}
    for ref in refs:
        if ref.uid not in answers:
            yield f"no answer for claim {ref} (uid {ref.uid})"
    for uid in sorted(set(answers) - asked):
        yield f"an answer for uid {uid}, which was not asked for"


def success_problems(refs: Sequence[ClaimRef], answers: Answers) -> Iterator[str]:
    """Every claim must be answered, without an error."""
    yield from entry_problems(refs, answers)
    for ref in refs:
        if ref.uid in answers and answers[ref.uid].error:
            yield f'claim {ref} answered with an error: "{answers[ref.uid].error}"'


def refusal_problems(refs: Sequence[ClaimRef], answers: Answers) -> Iterator[str]:
    """Every claim must be answered with an error."""
    yield from entry_problems(refs, answers)
    for ref in refs:
        if ref.uid in answers and not answers[ref.uid].error:
            yield f"claim {ref} answered without an error"


def device_problems(driver: str, allocation: Document, entry: Entry) -> Iterator[str]:
    """The devices must be the allocation's, for the requests they were allocated for."""
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


def difference_problems(first: Entry, second: Entry, when: str) -> Iterator[str]:
    """Two answers for the same claim must have the same devices."""
    before, after = sorted(first.devices), sorted(second.devices)
    if before != after:
        yield f"{when} the answer was {_listed(after)}, and before it was {_listed(before)}"


def _listed(devices: Sequence[PreparedDevice]) -> str:
    return ", ".join(f"{device} [{' '.join(device.cdi_ids)}]" for device in devices) or "no devices"
