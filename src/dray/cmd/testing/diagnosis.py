"""Diagnosis of an object that does not reach the expected state, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.devices import results_in
from dray.api.document import Document

EVENTS_MAX: Final = 12
INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Related:
    """Related objects that may explain the state."""

    # What `dray explain` says.
    verdict: Sequence[str] = ()
    events: Sequence[Document] = ()
    claims: Sequence[Document] = ()
    slices: Sequence[Document] = ()
    # Drivers registered with the node agent; None if no agent is running.
    drivers: Sequence[str] | None = None
    # The end of the output of drivers and containers, by name.
    outputs: dict[str, str] = field(default_factory=dict)


def diagnose(obj: Document | None, related: Related) -> str:
    """Return all facts, the most important first, indented."""
    lines = [
        *related.verdict,
        *_state(obj),
        *_claims(obj, related),
        *_events(related.events),
        *_devices(related),
        *_outputs(related),
    ]
    return "\n".join(INDENT + line for line in lines)


def _state(obj: Document | None) -> Iterator[str]:
    if obj is None:
        yield "it does not exist"
        return
    status = obj.get("status") or {}
    if "phase" in status:
        extra = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
        yield f"phase {status['phase']}" + (f" ({extra})" if extra else "")
    if (obj.get("spec") or {}).get("nodeName"):
        yield f"on node {obj['spec']['nodeName']}"
    for condition in status.get("conditions") or ():
        if condition.get("status") != "True":
            text = ": ".join(condition[key] for key in ("reason", "message") if condition.get(key))
            yield f"condition {condition.get('type')} is {condition.get('status')}" + (f": {text}" if text else "")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _container(container)


def _container(container: Document) -> Iterator[str]:
    for kind, state in (container.get("state") or {}).items():
        if kind == "running":
            yield f"container {container['name']} is running"
            continue
        words = [str(state[key]) for key in ("reason", "message") if state.get(key)]
        if "exitCode" in state:
            words.insert(0, f"exit code {state['exitCode']}")
        yield f"container {container['name']} {kind}: {': '.join(words)}"


def _claims(obj: Document | None, related: Related) -> Iterator[str]:
    wanted = _claim_names(obj)
    known = {item["metadata"]["name"]: item for item in related.claims}
    for name in wanted:
        if name not in known:
            yield f"claim {name} does not exist"
            continue
        claim = known[name]
        if (claim.get("status") or {}).get("allocation"):
            held = [f"{r['driver']}/{r['pool']}/{r['device']}" for r in results_in(claim)]
            yield f"claim {name} has {', '.join(held) or 'no devices'}"
        else:
            yield f"claim {name} is not allocated"


def _claim_names(obj: Document | None) -> list[str]:
    if obj is None:
        return []
    if obj.get("kind") == "ResourceClaim":
        return [obj["metadata"]["name"]]
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    made = {item["name"]: item.get("resourceClaimName") for item in status.get("resourceClaimStatuses") or ()}
    names = [item.get("resourceClaimName") or made.get(item["name"]) for item in spec.get("resourceClaims") or ()]
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return [name for name in (*names, extended) if name]


def _events(events: Iterable[Document]) -> Iterator[str]:
    listed = list(events)
    if not listed:
        yield "no events"
    for event in listed[-EVENTS_MAX:]:
        count = event.get("count") or (event.get("series") or {}).get("count") or 1
        times, text = f" (x{count})" if count > 1 else "", event.get("message") or event.get("note") or ""
        yield f"event {event.get('type')} {event.get('reason')}{times}: {text}"


def _devices(related: Related) -> Iterator[str]:
    if related.drivers is None:
        yield "the node agent is not running"
    else:
        yield f"registered drivers: {', '.join(related.drivers) or 'none'}"
    counted: dict[tuple[str, str], int] = {}
    for item in related.slices:
        spec: dict[str, Any] = item["spec"]
        key = spec["driver"], spec["pool"]["name"]
        counted[key] = counted.get(key, 0) + len(spec.get("devices") or ())
    pools = [f"{driver}/{pool} ({count} devices)" for (driver, pool), count in sorted(counted.items())]
    yield f"published devices: {', '.join(pools) or 'none'}"


def _outputs(related: Related) -> Iterator[str]:
    for name, text in related.outputs.items():
        if text.strip():
            yield f"output of {name}:"
            yield from (INDENT + line for line in text.rstrip().splitlines())
