"""Explains why the API server refused to create an object: quotas first, with the limits that would be enough. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import NamespacedName
from dray.api.quantity import Quantity, QuantityError
from dray.api.quota.check import Subject, requested
from dray.api.quota.usage import add_to
from dray.api.types.core_v1 import ResourceQuota
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.similar_names import did_you_mean, nearest
from dray.sim.holdings import kubectl_line, plural
from dray.sim.snapshot import KINDS, Snapshot, SnapshotError

_EXCEEDED: Final = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_UNMET: Final = re.compile(r"failed quota: ([^:]+): must specify (.+)$")
_PRIORITY: Final = re.compile(r"no PriorityClass with name (\S+) was found")
_ACCOUNT: Final = re.compile(r"error looking up service account ([^/\s]+)/([^:\s]+)")
_SECURITY: Final = re.compile(r'violates PodSecurity "([^:"]+):')
_FORBIDDEN: Final = re.compile(
    r'^(?:Error creating: )?(?:PodResourceClaim \S+: )?(?:create ResourceClaim[^:]*: )?(?:\S+ "[^"]*" is forbidden: )?'
)


@dataclass(frozen=True, slots=True)
class _Excess:
    """A resource of a quota that was exceeded."""

    name: str
    requested: Quantity
    used: Quantity


def refusal(
    snapshot: Snapshot, namespace: str, message: str, missing: int = 1, subjects: Sequence[Subject] = ()
) -> Verdict:
    """Return why an object was refused, with what would let `missing` of them in.

    `subjects` are what each of them adds to quotas: the message names only the limits that the first one exceeds.
    """
    reason = _FORBIDDEN.sub("", message).strip()
    if found := _EXCEEDED.search(message):
        action = _raise_quota(snapshot, namespace, found, missing, subjects)
        return Verdict(Stage.QUOTA, found.group(0), action)
    if found := _UNMET.search(message):
        name, amounts = found.groups()
        return Verdict(Stage.QUOTA, reason, f"set {amounts} in the Pod's containers, which quota {name} counts")
    return Verdict(Stage.ADMISSION, reason, _admission_action(snapshot, namespace, message))


def _raise_quota(
    snapshot: Snapshot, namespace: str, found: re.Match[str], missing: int, subjects: Sequence[Subject]
) -> str:
    name = found.group(1)
    quotas = {quota.metadata.name or "": quota for quota in snapshot.quotas if quota.metadata.namespace == namespace}
    lacking = {name: _lacking(quotas.get(name), {item.name: item for item in _excess(found)}, missing)}
    for other, quota in sorted(quotas.items()):
        wanted: dict[str, Quantity] = {}
        for subject in subjects:
            add_to(wanted, requested(quota, subject))
        used = _amounts(quota.status.used)
        needs = {key: _Excess(key, amount, used.get(key, Quantity(0))) for key, amount in wanted.items()}
        lacking[other] = lacking.get(other, {}) | _lacking(quota, needs, missing)
    lacking = {key: amounts for key, amounts in lacking.items() if amounts}
    if not lacking:
        return f"quota {name} has room now: the controller tries again soon"
    raised = [
        f"raise {' and '.join(f'{key} to {amount}' for key, amount in amounts.items())} in quota {quota}"
        for quota, amounts in lacking.items()
    ]
    return f"{', '.join(raised)}, or delete what uses {'it' if len(raised) == 1 else 'them'} in namespace {namespace}"


def _lacking(quota: ResourceQuota | None, needs: Mapping[str, _Excess], missing: int) -> dict[str, Quantity]:
    """Return the limits that are too low for `missing` more, each with what is enough."""
    used = {} if quota is None else _amounts(quota.status.used)
    hard = {} if quota is None else _amounts(quota.status.hard)
    enough = {
        key: used.get(key, item.used) + Quantity(item.requested.nanos * missing, item.requested.format)
        for key, item in needs.items()
    }
    return {key: amount for key, amount in enough.items() if key not in hard or amount > hard[key]}


def _excess(found: re.Match[str]) -> list[_Excess]:
    requested, used = (_pairs(found.group(number)) for number in (2, 3))
    return [_Excess(name, amount, used.get(name, Quantity(0))) for name, amount in requested.items()]


def _pairs(text: str) -> dict[str, Quantity]:
    pairs = (item.partition("=") for item in text.rstrip(",").split(","))
    return _amounts({name: amount for name, _, amount in pairs})


def _amounts(amounts: Mapping[str, str]) -> dict[str, Quantity]:
    found = {}
    for name, amount in amounts.items():
        try:
            found[name] = Quantity.parse(amount)
        except QuantityError:
            continue
    return found


def _admission_action(snapshot: Snapshot, namespace: str, message: str) -> str:
    if found := _PRIORITY.search(message):
        known = [item["metadata"]["name"] for item in snapshot.documents.get("PriorityClass", ())]
        return f"create PriorityClass {found.group(1)}, or use another{did_you_mean(found.group(1), known)}"
    if found := _ACCOUNT.search(message):
        return f"create service account {found.group(2)} in namespace {found.group(1)}"
    if found := _SECURITY.search(message):
        level = found.group(1)
        return (
            f"change the Pod's security context, or the label pod-security.kubernetes.io/enforce={level} of {namespace}"
        )
    return "change the Pod so that it is admitted"


def not_found(snapshot: Snapshot, kind: str, key: NamespacedName) -> SnapshotError:
    """Return the error for an object that does not exist, or of a kind that was not read."""
    if reason := snapshot.unread(kind):
        line = f"; all that the tools read: {kubectl_line()}" if kind in snapshot.absent else ""
        return SnapshotError(f"{plural(kind)} {key} is not known: {reason}{line}")
    similar = similar_object(snapshot, kind, key.namespace, key.name)
    name = KINDS[kind][1]
    return SnapshotError(f'{name} "{key.name}" not found in namespace "{key.namespace}"{similar}')


def similar_object(snapshot: Snapshot, kind: str, namespace: str, name: str) -> str:
    """Return a note on an object of a similar name, or of the same name in another namespace."""
    documents = snapshot.documents.get(kind, ())
    own = [item["metadata"]["name"] for item in documents if item["metadata"].get("namespace") == namespace]
    if found := nearest(name, own):
        return f' (did you mean "{found}"?)'
    elsewhere = [item["metadata"].get("namespace") for item in documents if item["metadata"]["name"] == name]
    return f" (namespace {elsewhere[0]} has one of that name)" if elsewhere else ""
