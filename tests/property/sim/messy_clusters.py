"""Clusters in every state that trouble brings: one from each seed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dray.api.document import Document
from dray.sim.holdings import of_files
from dray.sim.snapshot import KINDS, Snapshot
from tests.unit.sim.cluster import GPU, NIC, claim, device, device_class, exactly, node, pod, resource_slice, template

PAST = "2025-12-31T20:00:00Z"
NAMESPACE = "team"
ZONES = ("a", "b")
PLUGIN = "plugin.example.com/card"
# Kinds that a dump may lack, and that a user may not list.
REMOVABLE = ("Node", "Pod", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "ResourceQuota")

# Seeds of clusters that broke a law once, one on each line.
BROKEN_SEEDS: Final = Path(__file__).with_name("broken_seeds.txt")


def broken_seeds() -> list[int]:
    """Return the seeds of clusters that broke a law once."""
    return [int(line) for line in BROKEN_SEEDS.read_text(encoding="utf-8").split()]


class MessyCluster:
    """The documents of a random cluster."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.documents: list[Document] = []
        # Whether the claims of pending Pods exist, as soon after the Pods were created.
        self.are_claims_made = self.chance(0.8)
        # Devices that are not allocated yet, by node.
        self.free: dict[str, list[str]] = {}
        self.nodes = [f"node-{number}" for number in range(self.rng.randint(1, 6))]
        self._add_classes()
        for name in self.nodes:
            self._add_node(name)
        self._add_fabric()
        self._add_templates()
        for number in range(self.rng.randint(0, 8)):
            self._add_running(f"run-{number}")
        for number in range(self.rng.randint(0, 3)):
            self._add_claim(f"claim-{number}")
        for number in range(self.rng.randint(1, 5)):
            self._add_pending(f"wait-{number}")
        if self.chance(0.2):
            self._add_quota()

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def snapshot(self) -> Snapshot:
        return replace(Snapshot.of(self.documents), listed=frozenset(KINDS))

    def dump(self) -> Snapshot:
        """The cluster as a dump without some kinds, or as read by a user without some rights."""
        lost = self.rng.sample(REMOVABLE, self.rng.randint(1, 3))
        kept = [item for item in self.documents if item["kind"] not in lost]
        snapshot = Snapshot.of(kept)
        declared: dict[str, str | None] = {}
        if self.chance(0.5):
            declared = {kind: None if kind in lost else "" for kind in KINDS}
        fields = of_files(snapshot.documents, declared)
        return replace(snapshot, **fields)

    # --- Nodes and devices. ---

    def _add_classes(self) -> None:
        made = device_class("gpu", f'device.driver == "{GPU}"')
        if self.chance(0.2):
            made["spec"]["extendedResourceName"] = "example.com/gpu"
        self.documents.append(made)
        if self.chance(0.3):
            self.documents.append(device_class("broken", "device.attributes['no.example.com'].none == 1"))
        if self.chance(0.5):
            self.documents.append(device_class("nic", f'device.driver == "{NIC}"'))

    def _add_node(self, name: str) -> None:
        made, rng = node(name), self.rng
        made["metadata"]["labels"]["zone"] = rng.choice(ZONES)
        made["metadata"]["uid"] = f"uid-{name}"
        made["status"]["allocatable"]["pods"] = "110"
        spec: Document = made["spec"]
        if self.chance(0.2):
            spec["unschedulable"] = True
            if self.chance(0.5):
                spec["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        if self.chance(0.2):
            effect = rng.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            spec.setdefault("taints", []).append({"key": "dedicated", "value": "x", "effect": effect})
        if self.chance(0.2):
            made["status"]["conditions"] = [{"type": "Ready", "status": rng.choice(("False", "Unknown"))}]
        if self.chance(0.1):
            made["status"]["allocatable"]["pods"] = "0"
        if self.chance(0.1):
            made["status"]["conditions"] = []
        if self.chance(0.2):
            # The second is of the devices of a driver, if the class says so.
            made["status"]["allocatable"][rng.choice((PLUGIN, "example.com/gpu"))] = str(rng.randint(1, 3))
            made["status"]["capacity"] = {**made["status"]["allocatable"]}
        if not self.chance(0.1):
            # Else it was deleted, and its slices and Pods are left.
            self.documents.append(made)
        self._add_slices(name)

    def _add_slices(self, name: str) -> None:
        rng = self.rng
        names = [f"gpu-{number}" for number in range(rng.randint(0, 4))]
        devices = [device(item) for item in names]
        for item in devices:
            if self.chance(0.15):
                item["taints"] = [{"key": "broken", "effect": rng.choice(("NoSchedule", "NoExecute", "None"))}]
        if not devices and self.chance(0.5):
            return
        self.free[name] = names
        incomplete = 2 if self.chance(0.15) else 1
        made = resource_slice(name, GPU, *devices, count=incomplete, nodeName=name)
        self.documents.append(made)
        if self.chance(0.1):
            # An older generation of the same pool.
            old = resource_slice(f"{name}-old", GPU, device("gpu-9"), nodeName=name)
            old["spec"]["pool"] |= {"name": name, "generation": 0}
            self.documents.append(old)

    def _add_fabric(self) -> None:
        if self.chance(0.3):
            shared = {"allowMultipleAllocations": True} if self.chance(0.5) else {}
            self.documents.append(resource_slice("fabric", NIC, device("nic-0", **shared), allNodes=True))

    # --- Claims. ---

    def _add_templates(self) -> None:
        for count in (1, 2, 3):
            self.documents.append(template(f"gpus-{count}", exactly(count)))
        expression = f"device.attributes['{GPU}'].modle == 'a100'"
        self.documents.append(template("typo", exactly(1, expression)))

    def _take(self, name: str, count: int) -> list[str]:
        taken, self.free[name] = self.free[name][:count], self.free[name][count:]
        return [f"{GPU}/{name}/{item}" for item in taken]

    def _add_claim(self, name: str) -> None:
        rng = self.rng
        having = [item for item, left in self.free.items() if left]
        state = rng.choice(("pending", "stale", "unused", "terminating"))
        if state == "pending" or not having:
            self.documents.append(claim(name, uid=f"uid-{name}", creationTimestamp=PAST))
            return
        fields: dict[str, Any] = {"uid": f"uid-{name}", "creationTimestamp": PAST}
        if state == "terminating":
            fields |= {"deletionTimestamp": PAST, "finalizers": ["driver.example.com/cleanup"]}
        users = ("gone",) if state == "stale" or (state == "terminating" and self.chance(0.5)) else ()
        self.documents.append(claim(name, *self._take(rng.choice(having), 1), pods=users, **fields))

    def _add_quota(self) -> None:
        hard = self.rng.randint(0, 12)
        claims = sum(item["kind"] == "ResourceClaim" for item in self.documents)
        name = "count/resourceclaims.resource.k8s.io"
        status = {"hard": {name: str(hard)}, "used": {name: str(claims)}}
        metadata = {"name": "quota", "namespace": NAMESPACE}
        made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": status["hard"]}}
        self.documents.append(made | {"status": status})

    # --- Pods. ---

    def _add_running(self, name: str) -> None:
        where = self.rng.choice(self.nodes)
        made = pod(name, where)
        made["metadata"]["creationTimestamp"] = PAST
        made["metadata"]["labels"] = {"app": "web"}
        made["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        made["spec"]["priority"] = self.rng.choice((0, 0, 10))
        if self.chance(0.1):
            made["spec"]["containers"][0]["resources"] = {
                "requests": {"example.com/gpu": "1"},
                "limits": {"example.com/gpu": "1"},
            }
        devices = self._take(where, 1) if where in self.free and self.chance(0.7) else []
        if devices:
            made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus-1"}]
            made["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
            held = claim(f"{name}-gpu", *devices, pods=(name,), ownerReferences=[owner], uid=f"uid-{name}-gpu")
            self.documents.append(held)
        if self.chance(0.1):
            made["status"]["phase"] = self.rng.choice(("Succeeded", "Failed"))
            made["status"]["conditions"] = []
        elif self.chance(0.1):
            made["metadata"] |= {"deletionTimestamp": PAST, "deletionGracePeriodSeconds": 30}
            if self.chance(0.5):
                made["metadata"]["finalizers"] = ["example.com/keep"]
        self.documents.append(made)

    def _add_pending(self, name: str) -> None:
        rng, made = self.rng, pod(name)
        made["metadata"]["creationTimestamp"] = PAST
        made["status"] = {"phase": "Pending"}
        spec: Document = made["spec"]
        spec["schedulerName"] = "default-scheduler"
        spec["priority"] = rng.choice((0, 0, 5, 20))
        wanted = rng.choice(("gpus-1", "gpus-1", "gpus-2", "gpus-3", "typo", "absent", "claim", "plugin", "nothing"))
        if wanted == "claim":
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"claim-{rng.randint(0, 3)}"}]
        elif wanted == "plugin":
            resource = rng.choice((PLUGIN, "example.com/gpu"))
            spec["containers"][0]["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
        elif wanted != "nothing":
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": wanted}]
            if self.are_claims_made and wanted != "absent":
                self._add_own_claim(made, wanted)
        if self.chance(0.15):
            spec["schedulingGates"] = [{"name": "example.com/gate"}]
        if self.chance(0.2):
            key, value = rng.choice(
                (("zone", "a"), ("zone", "c"), ("kubernetes.io/hostname", "node-0"), ("kubernetes.io/hostname", "none"))
            )
            spec["nodeSelector"] = {key: value}
        if self.chance(0.2):
            spec["tolerations"] = [{"key": rng.choice(("dedicated", "dedicatd")), "operator": "Exists"}]
        if self.chance(0.1):
            term = {"labelSelector": {"matchLabels": {"app": rng.choice(("web", "wbe"))}}, "topologyKey": "zone"}
            spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        if self.chance(0.1):
            made["status"]["nominatedNodeName"] = rng.choice(self.nodes)
        self.documents.append(made)

    def _add_own_claim(self, made: Document, template_name: str) -> None:
        """Add the claim that the controller has made from a template."""
        name, uid = made["metadata"]["name"], made["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
        own = claim(f"{name}-gpu", ownerReferences=[owner], uid=f"uid-{name}-gpu")
        own["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
        of_name = (item for item in self.documents if item["metadata"]["name"] == template_name)
        own["spec"] = next(item for item in of_name if item["kind"] == "ResourceClaimTemplate")["spec"]["spec"]
        made["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
        self.documents.append(own)
