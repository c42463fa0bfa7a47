"""A random cluster from a seed: its objects, and what happens in it, one Pod or change after the other.

Everything here is data as a user would apply it. A change of this module makes other clusters from the same seeds, so
that recorded answers no longer fit: their hashes say so.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document

NAMESPACE: Final = "team"
GPU, NIC = "gpu.example.com", "nic.example.com"
PLUGIN_RESOURCE, EXTENDED_RESOURCE = "example.com/card", "example.com/gpu"
MODELS, ZONES, APPS = ("a100", "h100", "t4"), ("a", "b", "c"), ("web", "db", "job")
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_API: Final = {
    "Node": "v1",
    "Pod": "v1",
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
}
_DEVICE_API: Final = "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next: `pod` is to be placed, with the objects that it needs; or a change.

    A change is `apply` (create or replace the objects) or `delete` (the objects, of which only the names count).
    """

    action: str
    objects: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster and what happens in it."""

    seed: int
    objects: tuple[Document, ...]
    steps: tuple[Step, ...]

    @property
    def digest(self) -> str:
        """Return a hash of all that is given to a scheduler."""
        given = [self.objects, [(step.action, step.objects) for step in self.steps]]
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:12]


def make_case(seed: int) -> Case:
    """Return the case of a seed."""
    builder = _Builder(random.Random(seed))
    return Case(seed, tuple(builder.objects), tuple(builder.steps))


def obj(kind: str, name: str, *, namespace: str = "", labels: Document | None = None, **fields: Any) -> Document:
    metadata: Document = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": _API.get(kind, _DEVICE_API), "kind": kind, "metadata": metadata} | fields


def _device_class(name: str, expression: str, **spec: Any) -> Document:
    return obj("DeviceClass", name, spec={"selectors": [{"cel": {"expression": expression}}]} | spec)


class _Builder:
    """Draws the objects of one case."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.objects: list[Document] = [
            obj("Namespace", NAMESPACE, labels={ADMIN_LABEL: "true"}),
            obj("ServiceAccount", "default", namespace=NAMESPACE, automountServiceAccountToken=False),
            obj("PriorityClass", "high", value=1000),
            obj("PriorityClass", "mid", value=100),
            obj("PriorityClass", "polite", value=1000, preemptionPolicy="Never"),
        ]
        self.steps: list[Step] = []
        self.nodes = [f"node-{number}" for number in range(rng.randint(2, 6))]
        self.slices: dict[str, Document] = {}
        # What a case is about: a few of the features, so that they meet each other often.
        self.features = {name for name in _FEATURES if rng.random() < 0.35}
        # Whether cpus are scarce, so that Pods compete for them.
        self.is_small = self.chance(0.5)
        if self.is_small:
            self.features |= {"priorities"}
        # They do not change: kube-scheduler counts how many nodes have an image anew only for nodes that change.
        self.images = self._draw_images()
        self._add_classes()
        for name in self.nodes:
            self.objects.append(self._node(name))
            if self.chance(0.85):
                self._add_slices(name)
        self._add_shared_pools()
        self.objects += self.slices.values()
        self.has_nics = any(item["spec"]["driver"] == NIC for item in self.slices.values())
        self.shared_claims: list[str] = []
        for number in range(rng.randint(0, 2)):
            self.shared_claims.append(f"shared-{number}")
            self.objects.append(self._claim(f"shared-{number}"))
        if self.has("budgets"):
            self._add_budgets()
        self.pod_names: list[str] = []
        for number in range(rng.randint(12, 20)):
            if number and self.chance(0.25):
                self._add_change(number)
            self._add_pod(f"pod-{number}")

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def has(self, feature: str, share: float = 1.0) -> bool:
        return feature in self.features and self.chance(share)

    # --- The cluster. ---

    def _add_classes(self) -> None:
        extended: Document = {"extendedResourceName": EXTENDED_RESOURCE} if self.has("extended") else {}
        self.objects.append(_device_class("gpu", f'device.driver == "{GPU}"', **extended))
        self.objects.append(_device_class("nic", f'device.driver == "{NIC}"'))
        h100 = f'device.driver == "{GPU}" && device.attributes["{GPU}"].model == "h100"'
        self.objects.append(_device_class("h100", h100))
        big = f'device.driver == "{GPU}" && device.capacity["{GPU}"].memory.compareTo(quantity("40Gi")) >= 0'
        self.objects.append(_device_class("big", big))
        if self.chance(0.1):
            self.objects.append(_device_class("broken", f'device.attributes["{GPU}"].absent == 1'))

    def _draw_images(self) -> dict[str, list[Document]]:
        """Return the images of some nodes. An image has one size: kube-scheduler uses that of the first node."""
        if "images" not in self.features:
            return {}
        sizes = {app: self.rng.randint(20, 900) * 1024 * 1024 for app in APPS}
        images = {app: {"names": [f"example.com/{app}:1"], "sizeBytes": size} for app, size in sizes.items()}
        return {
            node: [images[app] for app in self.rng.sample(APPS, self.rng.randint(1, 3))]
            for node in self.nodes
            if self.chance(0.6)
        }

    def _node(self, name: str) -> Document:
        rng = self.rng
        cpu, memory = rng.choice(("2", "4", "4", "8")), rng.choice(("4Gi", "8Gi", "8Gi", "16Gi"))
        if self.is_small:
            cpu = rng.choice(("2", "3"))
        amounts = {"cpu": cpu, "memory": memory, "pods": rng.choice(("3", "10", "110")), "ephemeral-storage": "50Gi"}
        if self.has("plugin", 0.7):
            amounts[PLUGIN_RESOURCE] = str(rng.randint(0, 3))
        labels = {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": rng.choice(ZONES),
            "disk": rng.choice(("ssd", "hdd")),
        }
        spec: Document = {}
        if self.has("taints", 0.4):
            effect = rng.choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))
            spec["taints"] = [{"key": "dedicated", "value": rng.choice(APPS), "effect": effect}]
        if self.chance(0.05):
            spec["unschedulable"] = True
        status: Document = {"allocatable": amounts, "capacity": amounts}
        if images := self.images.get(name):
            status["images"] = images
        return obj("Node", name, labels=labels, spec=spec, status=status)

    def _device(self, name: str, number: int) -> Document:
        rng = self.rng
        attributes: Document = {
            "model": {"string": rng.choice(MODELS)},
            "index": {"int": number},
            "healthy": {"bool": self.chance(0.9)},
            "driverVersion": {"version": rng.choice(("1.2.3", "2.0.0"))},
            "numa": {"int": rng.randint(0, 1)},
        }
        if self.chance(0.15):
            attributes["special"] = {"string": "yes"}
        device: Document = {
            "name": name,
            "attributes": attributes,
            "capacity": {"memory": {"value": rng.choice(("16Gi", "40Gi", "80Gi"))}},
        }
        if self.has("device taints", 0.25):
            effect = rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": "broken", "value": rng.choice(("a", "b")), "effect": effect}]
        return device

    def _devices(self, count: int) -> list[Document]:
        return [self._device(f"gpu-{number}", number) for number in range(count)]

    def _slice(self, name: str, pool: str, devices: list[Document], **spec: Any) -> Document:
        """Return a slice of its own pool, unless `count` or `generation` say otherwise."""
        driver, count, generation = spec.pop("driver", GPU), spec.pop("count", 1), spec.pop("generation", 1)
        own = {"name": pool, "generation": generation, "resourceSliceCount": count}
        content: Document = {"driver": driver, "pool": own} | spec
        if devices:
            content["devices"] = devices
        made = self.slices[name] = obj("ResourceSlice", name, spec=content)
        return made

    def _add_slices(self, node: str) -> None:
        kinds = [name for name in ("partitions", "capacity", "pools") if name in self.features]
        kind = self.rng.choice(["plain", *kinds])
        if kind == "partitions":
            self._add_partitions(node)
        elif kind == "capacity":
            self._slice(
                node, node, [self._shared_device(f"gpu-{n}") for n in range(self.rng.randint(1, 3))], nodeName=node
            )
        elif kind == "pools":
            self._add_pools(node)
        else:
            self._slice(node, node, self._devices(self.rng.randint(1, 5)), nodeName=node)

    def _add_partitions(self, node: str) -> None:
        rng = self.rng
        cards = rng.randint(1, 2)
        sets = [
            {"name": f"card-{n}", "counters": {"memory": {"value": "80Gi"}, "slices": {"value": "8"}}}
            for n in range(cards)
        ]
        self._slice(f"{node}-counters", node, [], nodeName=node, count=2, sharedCounters=sets)
        devices: list[Document] = []
        for card in range(cards):
            for part, share in (("whole", 8), ("half-0", 4), ("half-1", 4), ("small-0", 1), ("small-1", 1)):
                device = self._device(f"gpu-{card}-{part}", card)
                device["capacity"] = {"memory": {"value": f"{share * 10}Gi"}}
                counters = {"memory": {"value": f"{share * 10}Gi"}, "slices": {"value": str(share)}}
                device["consumesCounters"] = [{"counterSet": f"card-{card}", "counters": counters}]
                devices.append(device)
        if self.chance(0.3):
            rng.shuffle(devices)
        self._slice(node, node, devices, nodeName=node, count=2)

    def _shared_device(self, name: str) -> Document:
        rng = self.rng
        device = self._device(name, 0)
        device["allowMultipleAllocations"] = self.chance(0.8)
        policies: tuple[Document, ...] = (
            {},
            {"requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"}}},
            {"requestPolicy": {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}},
        )
        device["capacity"] = {"memory": {"value": rng.choice(("40Gi", "80Gi"))}, "streams": {"value": "4"}}
        if device["allowMultipleAllocations"]:
            device["capacity"]["memory"] |= rng.choice(policies)
            if self.chance(0.5):
                device["capacity"]["streams"] |= {"requestPolicy": {"default": "1", "validRange": {"min": "1"}}}
        return device

    def _add_pools(self, node: str) -> None:
        match self.rng.randint(0, 3):
            case 0:  # one pool in two slices
                self._slice(f"{node}-0", node, self._devices(2), nodeName=node, count=2)
                self._slice(f"{node}-1", node, [self._device("other", 9)], nodeName=node, count=2)
            case 1:  # an incomplete pool
                self._slice(f"{node}-0", node, self._devices(2), nodeName=node, count=2)
            case 2:  # an old generation
                self._slice(f"{node}-0", node, self._devices(3), nodeName=node)
                self._slice(f"{node}-1", node, self._devices(2), nodeName=node, generation=2)
            case _:  # two pools
                self._slice(f"{node}-0", f"{node}-a", self._devices(2), nodeName=node)
                self._slice(f"{node}-1", f"{node}-b", self._devices(2), nodeName=node)

    def _add_shared_pools(self) -> None:
        """Add NICs, of all nodes, of some, or of each."""
        rng = self.rng
        nics = [{"name": f"nic-{n}", "attributes": {"numa": {"int": n % 2}}} for n in range(rng.randint(1, 4))]
        if self.has("fabric"):
            match rng.randint(0, 2):
                case 0:
                    self._slice("fabric", "fabric", nics, driver=NIC, allNodes=True)
                case 1:
                    for zone in rng.sample(ZONES, 2):
                        terms = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
                        selector = {"nodeSelectorTerms": [{"matchExpressions": [terms]}]}
                        self._slice(f"rack-{zone}", f"rack-{zone}", nics, driver=NIC, nodeSelector=selector)
                case _:
                    devices: list[Document] = [nic | {"nodeName": rng.choice(self.nodes)} for nic in nics]
                    devices[0] = nics[0] | {"allNodes": True}
                    self._slice("fabric", "fabric", devices, driver=NIC, perDeviceNodeSelection=True)
        elif self.chance(0.4):
            for node in self.nodes:
                self._slice(f"{node}-nic", node, nics, driver=NIC, nodeName=node)

    def _add_budgets(self) -> None:
        for app in self.rng.sample(APPS, self.rng.randint(1, 2)):
            allowed = self.rng.randint(0, 1)
            status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
            spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
            budget = obj("PodDisruptionBudget", f"budget-{app}", namespace=NAMESPACE, spec=spec)
            self.objects.append(budget | {"status": status | {"observedGeneration": 1}})

    # --- Requests for devices. ---

    def _exactly(self, *, is_sub: bool = False) -> Document:
        rng = self.rng
        request: Document = {"deviceClassName": rng.choice(("gpu", "gpu", "gpu", "h100", "big"))}
        if self.has_nics and self.chance(0.25):
            request["deviceClassName"] = "nic"
        if self.chance(0.02):
            request["deviceClassName"] = rng.choice(("broken", "none"))
        if self.chance(0.08):
            request["allocationMode"] = "All"
        elif self.chance(0.3):
            request["count"] = rng.randint(2, 3)
        if self.chance(0.25):
            request["selectors"] = [{"cel": {"expression": self._expression()}}]
        if not is_sub and self.has("admin", 0.15):
            request["adminAccess"] = True
        if "device taints" in self.features and self.chance(0.4):
            key: Document = {"key": "broken", "operator": "Exists"}
            request["tolerations"] = [rng.choice(({"operator": "Exists"}, key, key | {"effect": "NoSchedule"}))]
        if self.has("capacity", 0.5):
            request["capacity"] = {"requests": {"memory": rng.choice(("1Gi", "5Gi", "15Gi", "20Gi", "50Gi"))}}
            if self.chance(0.3):
                request["capacity"]["requests"]["streams"] = rng.choice(("1", "2", "3"))
        return request

    def _expression(self) -> str:
        rng = self.rng
        attributes = f'device.attributes["{GPU}"]'
        return rng.choice(
            (
                f'{attributes}.model == "{rng.choice(MODELS)}"',
                f"{attributes}.healthy",
                f"{attributes}.index > {rng.randint(0, 2)}",
                f'{attributes}.driverVersion.isGreaterThan(semver("1.9.0"))',
                f'device.capacity["{GPU}"].memory.isGreaterThan(quantity("20Gi"))',
                f'"special" in {attributes} && {attributes}.special == "yes"',
                f'{attributes}.special == "yes"' if self.chance(0.1) else "true",
            )
        )

    def _claim_spec(self) -> Document:
        rng = self.rng
        requests: list[Document] = []
        for number in range(rng.choices((1, 2, 3), (6, 3, 1))[0]):
            name = f"r{number}"
            if self.has("alternatives", 0.5):
                subs = [{"name": f"s{n}"} | self._exactly(is_sub=True) for n in range(rng.randint(1, 3))]
                requests.append({"name": name, "firstAvailable": subs})
            else:
                requests.append({"name": name, "exactly": self._exactly()})
        devices: Document = {"requests": requests}
        if self.has("constraints", 0.6):
            attribute = f"{GPU}/{rng.choice(('model', 'numa', 'driverVersion', 'index'))}"
            constraint: Document = {rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute")): attribute}
            if self.chance(0.4):
                constraint["requests"] = sorted(rng.sample([item["name"] for item in requests], 1))
            devices["constraints"] = [constraint]
        if self.chance(0.1):
            devices["config"] = [{"opaque": {"driver": GPU, "parameters": {"kind": "Config", "n": rng.randint(0, 9)}}}]
        return {"devices": devices}

    def _claim(self, name: str) -> Document:
        return obj("ResourceClaim", name, namespace=NAMESPACE, spec=self._claim_spec())

    # --- Pods. ---

    def _add_pod(self, name: str) -> None:
        rng = self.rng
        app = rng.choice(APPS)
        containers = [self._container(f"c{number}", app) for number in range(rng.choices((1, 2), (4, 1))[0])]
        spec: Document = {"containers": containers}
        objects: list[Document] = []
        if self.chance(0.15):
            spec["initContainers"] = [self._container("init", app)]
            if self.chance(0.5):
                spec["initContainers"][0]["restartPolicy"] = "Always"
        entries: list[Document] = []
        for number in range(rng.choices((0, 1, 2), (8, 5, 1) if self.is_small else (4, 5, 1))[0]):
            entry = f"e{number}"
            if self.shared_claims and self.chance(0.2):
                entries.append({"name": entry, "resourceClaimName": rng.choice(self.shared_claims)})
            elif self.chance(0.25):
                objects.append(self._claim(f"{name}-{entry}"))
                entries.append({"name": entry, "resourceClaimName": f"{name}-{entry}"})
            else:
                template = obj("ResourceClaimTemplate", f"{name}-{entry}", namespace=NAMESPACE)
                objects.append(template | {"spec": {"spec": self._claim_spec()}})
                entries.append({"name": entry, "resourceClaimTemplateName": f"{name}-{entry}"})
        if entries:
            spec["resourceClaims"] = entries
            containers[0]["resources"]["claims"] = [{"name": item["name"]} for item in entries]
        self._add_placement_rules(spec, app)
        if self.has("priorities", 0.6):
            spec["priorityClassName"] = rng.choice(("high", "mid", "mid", "polite"))
        if self.has("pod level", 0.4):
            spec["resources"] = self._pod_level(containers + spec.get("initContainers", []))
        made = obj("Pod", name, namespace=NAMESPACE, labels={"app": app}, spec=spec)
        self.pod_names.append(name)
        self.steps.append(Step("pod", (*objects, made)))

    def _container(self, name: str, app: str) -> Document:
        rng = self.rng
        amounts: Document = {}
        if self.chance(0.75):
            amounts["cpu"] = rng.choice(("500m", "1", "1500m") if self.is_small else ("100m", "250m", "500m"))
        if self.chance(0.6):
            amounts["memory"] = rng.choice(("128Mi", "512Mi", "1Gi", "2Gi"))
        if self.chance(0.1):
            amounts["ephemeral-storage"] = rng.choice(("1Gi", "30Gi"))
        resources: Document = {"requests": amounts} if amounts else {}
        limits: Document = {}
        if self.has("plugin", 0.3):
            limits[PLUGIN_RESOURCE] = str(rng.randint(1, 2))
        if self.has("extended", 0.4):
            implicit = f"deviceclass.resource.kubernetes.io/{rng.choice(('gpu', 'nic'))}"
            limits[rng.choice((EXTENDED_RESOURCE, EXTENDED_RESOURCE, implicit))] = str(rng.randint(1, 2))
        if limits:
            resources["limits"] = limits
        container: Document = {"name": name, "image": f"example.com/{app}:1", "resources": resources}
        if name == "c0" and self.has("ports", 0.3):
            container["ports"] = [{"containerPort": 80, "hostPort": rng.choice((80, 8080))}]
        return container

    def _pod_level(self, containers: list[Document]) -> Document:
        rng = self.rng
        for container in containers:
            container["resources"].get("requests", {}).pop("ephemeral-storage", None)
        level: Document = {}
        if self.chance(0.7):
            level["requests"] = (
                {"cpu": rng.choice(("6", "7")), "memory": "9Gi"} if self.chance(0.2) else {"cpu": "4500m"}
            )
        if self.chance(0.7) or not level:
            level["limits"] = {"cpu": rng.choice(("7", "8"))}
            if self.chance(0.5):
                level["limits"]["memory"] = "10Gi"
        return level

    def _add_placement_rules(self, spec: Document, app: str) -> None:
        rng = self.rng
        if "taints" in self.features and self.chance(0.4):
            spec["tolerations"] = [rng.choice(({"operator": "Exists"}, {"key": "dedicated", "value": app}))]
        if self.has("selectors", 0.25):
            spec["nodeSelector"] = {"disk": rng.choice(("ssd", "hdd"))}
        affinity: Document = {}
        if self.has("selectors", 0.4):
            affinity["nodeAffinity"] = self._node_affinity()
        if self.has("affinity", 0.5):
            for kind in rng.sample(("podAffinity", "podAntiAffinity"), rng.choice((1, 1, 2))):
                affinity[kind] = self._pod_affinity()
        if affinity:
            spec["affinity"] = affinity
        if self.has("spread", 0.5):
            spread = {
                "maxSkew": rng.randint(1, 2),
                "topologyKey": rng.choice(("kubernetes.io/hostname", "topology.kubernetes.io/zone")),
                "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
                "labelSelector": {"matchLabels": {"app": app}},
            }
            if self.chance(0.2):
                spread["nodeTaintsPolicy"] = "Honor"
            if spread["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.2):
                spread["minDomains"] = rng.randint(1, 4)
            spec["topologySpreadConstraints"] = [spread]

    def _node_affinity(self) -> Document:
        rng = self.rng
        zones = {
            "key": "topology.kubernetes.io/zone",
            "operator": rng.choice(("In", "NotIn")),
            "values": [rng.choice(ZONES)],
        }
        if self.chance(0.5):
            term = {"weight": rng.randint(1, 100), "preference": {"matchExpressions": [zones]}}
            return {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
        terms: list[Document] = [{"matchExpressions": [zones]}]
        if self.chance(0.2):
            fields = [{"key": "metadata.name", "operator": "In", "values": [rng.choice(self.nodes)]}]
            terms = [{"matchFields": fields}]
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def _pod_affinity(self) -> Document:
        rng = self.rng
        term: Document = {
            "topologyKey": rng.choice(("kubernetes.io/hostname", "topology.kubernetes.io/zone")),
            "labelSelector": {"matchLabels": {"app": rng.choice(APPS)}},
        }
        if self.chance(0.5):
            weighted = {"weight": rng.randint(1, 100), "podAffinityTerm": term}
            return {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}

    # --- Changes. ---

    def _add_change(self, number: int) -> None:
        rng = self.rng
        match rng.choice(("node", "node", "slice", "delete slice", "rule", "delete pod", "delete pod")):
            case "node":
                self.steps.append(Step("apply", (self._node(rng.choice(self.nodes)),)))
            case "slice" if self.slices:
                self._replace_slice(rng.choice(sorted(self.slices)))
            case "delete slice" if self.slices and self.chance(0.5):
                name = rng.choice(sorted(self.slices))
                self.steps.append(Step("delete", (self.slices.pop(name),)))
            case "rule":
                selector: Document = {"driver": GPU}
                if self.chance(0.7):
                    selector["pool"] = rng.choice(self.nodes)
                if self.chance(0.5):
                    selector["device"] = f"gpu-{rng.randint(0, 2)}"
                taint = {"key": "broken", "value": "rule", "effect": "NoSchedule"}
                rule = obj("DeviceTaintRule", f"rule-{number}", spec={"deviceSelector": selector, "taint": taint})
                self.steps.append(Step("apply", (rule,)))
            case _ if self.pod_names:
                victim = rng.choice(self.pod_names)
                self.steps.append(Step("delete", (obj("Pod", victim, namespace=NAMESPACE),)))

    def _replace_slice(self, name: str) -> None:
        """A driver publishes the slice's devices again, changed, as a new generation or in the old one."""
        old = self.slices[name]["spec"]
        if "sharedCounters" in old:
            return
        pool = old["pool"] | ({"generation": old["pool"]["generation"] + 1} if self.chance(0.5) else {})
        kept = [device for device in old["devices"] if self.chance(0.8)] or old["devices"]
        made = self.slices[name] = obj("ResourceSlice", name, spec=old | {"pool": pool, "devices": kept})
        self.steps.append(Step("apply", (made,)))


_FEATURES: Final = (
    "admin",
    "affinity",
    "alternatives",
    "budgets",
    "capacity",
    "constraints",
    "device taints",
    "extended",
    "fabric",
    "images",
    "partitions",
    "plugin",
    "pod level",
    "pools",
    "ports",
    "priorities",
    "selectors",
    "spread",
    "taints",
)
