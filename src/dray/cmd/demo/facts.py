"""The facts that the demo shows: requests, filter results, allocations and their reasons, PodResources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dray.api.devices import results_in
from dray.api.document import Document
from dray.cmd.demo.cluster_state import ClusterState, node_rows
from dray.cmd.demo.scenario import DRA_DRIVER, RESOURCE, DemoNode
from dray.cmd.demo.screen import Fact
from dray.sim.explain.answers import Answer, Standing
from dray.sim.explain.verdict import victims_text

SUGGESTIONS_MAX = 3
# Environment variables that differ from run to run.
_HIDDEN = ("GPU_CLAIM=", "ACME_SHARE=")
_ATTRIBUTE = re.compile(r'device\.attributes\["[^"]*"\]\.')


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The PodResources of one container."""

    pod: str
    container: str
    # Resource name -> device ids from a device plugin.
    plugin: Mapping[str, tuple[str, ...]]
    # Claim -> `driver/pool/device`.
    claims: Mapping[str, tuple[str, ...]]


def hardware_facts(state: ClusterState, nodes: Sequence[DemoNode]) -> Iterator[Fact]:
    """Return the devices of the nodes."""
    rows = node_rows(state, nodes)
    drivers = [row for row in rows if row.served_by == DRA_DRIVER]
    devices = sum(len(item["spec"].get("devices", ())) for item in state.slices)
    cards = sum(len(row.cards) for row in drivers)
    yield Fact("nodes", f"{len(rows)} node agents, each with its own root directory; containers are processes")
    yield Fact("dra", f"{len(drivers)} drivers publish {cards} cards and their partitions: {devices} devices")
    for row in rows:
        if row not in drivers:
            yield Fact("plugin", f"the device plugin of {row.name} provides {RESOURCE}: {len(row.cards)}")


# --- Requests. ---


def request_facts(documents: Sequence[Document]) -> tuple[Fact, ...]:
    """Return one fact per Pod or Deployment of a manifest."""
    return tuple(
        Fact("request", f"{name}: {'; '.join(_request_texts(spec, documents))}") for name, spec in _pod_specs(documents)
    )


def _pod_specs(documents: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            yield f"pod {name}", document["spec"]
        elif document["kind"] == "Deployment":
            count = document["spec"]["replicas"]
            yield f"deployment {name}, {count} Pods, each", document["spec"]["template"]["spec"]


def _request_texts(spec: Document, documents: Sequence[Document]) -> Iterator[str]:
    for entry in spec.get("resourceClaims", ()):
        if "template" in entry:
            yield _classic_text(entry["template"]["spec"])
            continue
        template = entry.get("resourceClaimTemplateName", "")
        name = template or entry["resourceClaimName"]
        kind = "ResourceClaimTemplate" if template else "ResourceClaim"
        found = next(item for item in documents if (item["kind"], item["metadata"]["name"]) == (kind, name))
        devices = (found["spec"]["spec"] if template else found["spec"])["devices"]
        yield from (_request_text(request) for request in devices["requests"])
    for container in spec["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        yield from (f"{name}: {amount}" for name, amount in limits.items() if "/" in name)


def _classic_text(claim: Document) -> str:
    parameters = ", ".join(f"{name} {value}" for name, value in claim.get("parameters", {}).items())
    return f"1 {claim['resourceClassName']} with {parameters}"


def _request_text(request: Document) -> str:
    if "exactly" in request:
        return _alternative_text(request["exactly"])
    return ", else ".join(_alternative_text(item) for item in request["firstAvailable"])


def _alternative_text(alternative: Document) -> str:
    conditions = [_ATTRIBUTE.sub("", item["cel"]["expression"]) for item in alternative.get("selectors", ())]
    where = f" where {' && '.join(conditions)}" if conditions else ""
    return f"{alternative.get('count', 1)} {alternative['deviceClassName']}{where}"


# --- Explanations. ---


def node_facts(answer: Answer) -> Iterator[Fact]:
    """Return the filter result of every node."""
    for item in answer.nodes:
        result = "yes" if item.fits else "no"
        yield Fact("filter", f"{item.node}: {result}, {_unquoted(item.why)}", "green" if item.fits else "")


def _unquoted(text: str) -> str:
    """Remove the quotes around the names of requests."""
    return re.sub(r'request "([^"]*)"', r"\1", text)


def alternative_facts(answer: Answer) -> Iterator[Fact]:
    """Return why earlier alternatives were not allocated."""
    for item in answer.given:
        for better in item.passed_over:
            yield Fact("reason", f"not available on {answer.node}: {_unquoted(better)}")


def suggestion_facts(answer: Answer) -> Iterator[Fact]:
    """Return the verdict on a pending Pod, and changes with which it could be scheduled."""
    if answer.verdict is not None and answer.standing is Standing.PENDING:
        yield Fact("answer", answer.sentence, "yellow")
    for change in answer.changes[:SUGGESTIONS_MAX]:
        yield Fact("hint", f"{change.text}: fits on {', '.join(change.nodes)}", "yellow")
    for holder in answer.holders[:SUGGESTIONS_MAX]:
        yield Fact("hint", holder, "yellow")
    if answer.victims is not None:
        yield Fact("hint", victims_text(answer.victims), "yellow")


def preemption_facts(events: Iterable[Document], pods: Sequence[Document]) -> Iterator[Fact]:
    """Return which Pods were evicted for which, from the Events of the victims."""
    nodes = {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in pods}
    for event in events:
        preemptor = event.get("related") or {}
        if preemptor.get("uid") in nodes:
            victim, node = event["involvedObject"]["name"], nodes[preemptor["uid"]]
            yield Fact("evicted", f"{victim} gave its device of {node} to {preemptor['name']}", "yellow")


# --- Allocations. ---


def allocation_facts(pod: Document, state: ClusterState, devices: Iterable[ContainerDevices]) -> Iterator[Fact]:
    """Return the devices of a Pod and how they were allocated."""
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    for claim_name in claim_names(pod):
        claim = state.claim(claim_name)
        results = results_in(claim or {})
        is_extended = claim_name == extended_resource_claim(pod)
        by = "a claim created by the scheduler" if is_extended else f"claim {claim_name}"
        for result in results:
            yield Fact("result", f"{name} has {result['device']} of {node}{_alternative(result)}, by {by}", "green")
        if classic := state.classic_claim(claim_name):
            yield from _classic_allocation(name, classic)
    for item in devices:
        if item.pod == name and RESOURCE in item.plugin:
            ids = ", ".join(item.plugin[RESOURCE])
            yield Fact("result", f"{name} has {ids} of {node}, by the node's device plugin", "green")


def _classic_allocation(pod: str, claim: Document) -> Iterator[Fact]:
    status = claim["status"]
    what = ", ".join(f"{name} {value}" for name, value in sorted(status.get("attributes", {}).items()))
    yield Fact("result", f"{pod} has {what}, allocated by driver {status['driverName']}", "green")


def _alternative(result: Document) -> str:
    name, _, alternative = result["request"].partition("/")
    return f" as alternative {alternative} of request {name}" if alternative else ""


def claim_names(pod: Document) -> Iterator[str]:
    """Return the claims of a Pod: those it references, and those created for it."""
    status = pod.get("status", {})
    created = {item["name"]: item.get("resourceClaimName", "") for item in status.get("resourceClaimStatuses", ())}
    for entry in pod["spec"].get("resourceClaims", ()):
        if "template" in entry:
            yield f"{pod['metadata']['name']}-{entry['name']}"
        elif found := entry.get("resourceClaimName") or created.get(entry["name"]):
            yield found
    if extended := extended_resource_claim(pod):
        yield extended


def extended_resource_claim(pod: Document) -> str:
    """Return the claim of a Pod's extended resources; empty if it has none."""
    status: dict[str, str] = pod.get("status", {}).get("extendedResourceClaimStatus", {})
    return status.get("resourceClaimName", "")


def is_negotiated(states: Iterable[Document]) -> bool:
    """Return whether one of the states of a classic claim is allocated."""
    return any(state.get("status", {}).get("attributes") for state in states)


def negotiation_facts(states: Iterable[Document]) -> Iterator[Fact]:
    """Return the negotiation between scheduler and driver, from all states of a classic claim."""
    steps = dict.fromkeys(
        text for state in states for text in _negotiation_steps(state.get("status", {}).get("scheduling", {}))
    )
    return (Fact("steps", text) for text in steps)


def _negotiation_steps(scheduling: Document) -> Iterator[str]:
    scheduler, driver = scheduling.get("scheduler", {}), scheduling.get("driver", {})
    if nodes := scheduler.get("potentialNodes"):
        yield f"the scheduler proposes {', '.join(sorted(nodes))}"
    if nodes := driver.get("unsuitableNodes"):
        yield f"the driver reports {', '.join(sorted(nodes))} as unsuitable"
    if node := scheduler.get("selectedNode"):
        yield f"the scheduler selects {node}"
    for term in driver.get("availableOnNodes", {}).get("nodeSelectorTerms", ()):
        names = [value for item in term.get("matchFields", ()) for value in item.get("values", ())]
        yield f"the driver allocates, for use on {', '.join(names)}"


def provider_facts(pods: Sequence[Document], state: ClusterState) -> Iterator[Fact]:
    """Return what provides the extended resource on the nodes of the Pods, and why."""
    for name in sorted({pod["spec"].get("nodeName", "") for pod in pods}):
        node = state.node(name)
        if node is None:
            continue
        count = node["status"]["allocatable"].get(RESOURCE, "0")
        if count != "0":
            yield Fact("reason", f"{name} has {RESOURCE}: {count} from its device plugin, which takes precedence")
        else:
            yield Fact("reason", f"{name} has no device plugin: the DeviceClass with {RESOURCE} serves it with a claim")


def environment_facts(pod: Document, log: str) -> Iterator[Fact]:
    """Return the environment variables that the container printed."""
    for line in log.splitlines():
        if not line.startswith(_HIDDEN):
            yield Fact("env", f"{pod['metadata']['name']}: {line}", "cyan")


def pod_resources_facts(node: str, devices: Iterable[ContainerDevices]) -> Iterator[Fact]:
    """Return the PodResources of a node."""
    for item in devices:
        for resource, ids in item.plugin.items():
            yield Fact(node, f"{item.pod}/{item.container}: {resource} {', '.join(ids)}")
        for claim, names in item.claims.items():
            yield Fact(node, f"{item.pod}/{item.container}: claim {claim}: {', '.join(names)}")
