"""The kinds that kube-scheduler and kube-controller-manager 1.36 list and watch: their informers can sync."""

from __future__ import annotations

import pytest

from tests.local_server import Local

# From the informers that the components start with their default feature gates.
SCHEDULER = [
    "core/v1/namespaces",
    "core/v1/nodes",
    "core/v1/persistentvolumeclaims",
    "core/v1/persistentvolumes",
    "core/v1/pods",
    "core/v1/replicationcontrollers",
    "core/v1/services",
    "apps/v1/replicasets",
    "apps/v1/statefulsets",
    "policy/v1/poddisruptionbudgets",
    "storage.k8s.io/v1/csidrivers",
    "storage.k8s.io/v1/csinodes",
    "storage.k8s.io/v1/csistoragecapacities",
    "storage.k8s.io/v1/storageclasses",
    "storage.k8s.io/v1/volumeattachments",
    "resource.k8s.io/v1/deviceclasses",
    "resource.k8s.io/v1/resourceclaims",
    "resource.k8s.io/v1/resourceslices",
]
CONTROLLER_MANAGER = [
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "apiextensions.k8s.io/v1/customresourcedefinitions",
    "apps/v1/controllerrevisions",
    "apps/v1/daemonsets",
    "apps/v1/deployments",
    "autoscaling/v2/horizontalpodautoscalers",
    "batch/v1/cronjobs",
    "batch/v1/jobs",
    "certificates.k8s.io/v1/certificatesigningrequests",
    "coordination.k8s.io/v1/leases",
    "core/v1/configmaps",
    "core/v1/endpoints",
    "core/v1/limitranges",
    "core/v1/podtemplates",
    "core/v1/resourcequotas",
    "core/v1/secrets",
    "core/v1/serviceaccounts",
    "discovery.k8s.io/v1/endpointslices",
    "events.k8s.io/v1/events",
    "flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "networking.k8s.io/v1/ingressclasses",
    "networking.k8s.io/v1/ingresses",
    "networking.k8s.io/v1/ipaddresses",
    "networking.k8s.io/v1/networkpolicies",
    "networking.k8s.io/v1/servicecidrs",
    "node.k8s.io/v1/runtimeclasses",
    "rbac.authorization.k8s.io/v1/clusterroles",
    "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "rbac.authorization.k8s.io/v1/rolebindings",
    "rbac.authorization.k8s.io/v1/roles",
    "resource.k8s.io/v1/resourceclaimtemplates",
    "scheduling.k8s.io/v1/priorityclasses",
    "storage.k8s.io/v1/volumeattributesclasses",
]
USERS = {
    "system:kube-scheduler": SCHEDULER,
    "system:kube-controller-manager": [*SCHEDULER, *CONTROLLER_MANAGER],
}


@pytest.mark.parametrize("user", USERS)
async def test_informers_can_list_and_watch(api: Local, user: str) -> None:
    component = Local(api.running, groups=("system:authenticated",), user=user)
    for path in USERS[user]:
        listing = await component.request("list", path)
        assert listing["kind"].endswith("List"), path
        version = listing["metadata"]["resourceVersion"]
        events = await component.watch(path, resourceVersion=version, allowWatchBookmarks="true", timeoutSeconds="1")
        await events.aclose()  # type: ignore[attr-defined]
