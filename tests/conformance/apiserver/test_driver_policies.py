"""The policy that charts of DRA drivers install: a driver's Pod may write the slices of its own node alone."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.apiserver.call import Call, Result
from dray.apiserver.request import Attributes, UserInfo
from dray.apiserver.routes import RequestInfo
from tests.local_server import Local, until

pytestmark = pytest.mark.behaviour("VP-13")

GROUP = "admissionregistration.k8s.io/v1"
USER = "system:serviceaccount:gpu-driver:gpu-driver"
POLICY: Document = {
    "apiVersion": GROUP,
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "resourceslices-policy-gpu-driver"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "apiVersions": ["v1", "v1beta1", "v1beta2"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                    "resources": ["resourceslices"],
                }
            ]
        },
        "matchConditions": [{"name": "isRestrictedUser", "expression": f'request.userInfo.username == "{USER}"'}],
        "variables": [
            {
                "name": "userNodeName",
                "expression": "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')",
            },
            {
                "name": "objectNodeName",
                "expression": '(request.operation == "DELETE" ? oldObject : object).spec.?nodeName.orValue("")',
            },
        ],
        "validations": [
            {"expression": 'variables.userNodeName != ""', "message": "no node association found for user"},
            {
                "expression": "variables.userNodeName == variables.objectNodeName",
                "messageExpression": '"this user running on node \'"+variables.userNodeName+"\' may not modify " + '
                '(variables.objectNodeName == "" ? "cluster resourceslices" : '
                '"resourceslices on node \'"+variables.objectNodeName+"\'")',
            },
        ],
    },
}
BINDING: Document = {
    "apiVersion": GROUP,
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "resourceslices-policy-gpu-driver"},
    "spec": {"policyName": "resourceslices-policy-gpu-driver", "validationActions": ["Deny"]},
}
SLICES = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceslices"}
ROLE = {
    "metadata": {"name": "gpu-driver"},
    "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]}],
}
ROLE_BINDING = {
    "metadata": {"name": "gpu-driver"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpu-driver"},
    "subjects": [{"kind": "ServiceAccount", "namespace": "gpu-driver", "name": "gpu-driver"}],
}


def slice_on(node: str, version: str, **fields: Any) -> Document:
    pool = {"name": node or "pool", "generation": 1, "resourceSliceCount": 1}
    place: Document = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{node or 'all'}", **fields},
        "spec": {"driver": "gpu.example.com", "pool": pool, "devices": [], **place},
    }


class Driver:
    """The driver's Pod: requests with its own token."""

    def __init__(self, api: Local, user: UserInfo) -> None:
        self._api = api
        self._user = user

    async def send(self, verb: str, version: str, name: str = "", body: Any = None) -> Result:
        info = RequestInfo("POST", "", verb, "resource.k8s.io", version, "resourceslices", "", "", name)
        return await self._api.running.server.execute(Call(info, {}, self._user, body, "application/json", "driver/1"))


async def install(api: Local, *, node: str = "node-1") -> Driver:
    """Install the chart and return its Pod, whose token says on which node it runs."""
    await api.request("create", f"{GROUP}/validatingadmissionpolicies", POLICY)
    await api.request("create", f"{GROUP}/validatingadmissionpolicybindings", BINDING)
    await api.request("create", "core/v1/namespaces", {"metadata": {"name": "gpu-driver"}})
    account = {"metadata": {"name": "gpu-driver", "namespace": "gpu-driver"}}
    await api.request("create", "core/v1/serviceaccounts@gpu-driver", account)
    await api.request("create", "rbac.authorization.k8s.io/v1/clusterroles", ROLE)
    await api.request("create", "rbac.authorization.k8s.io/v1/clusterrolebindings", ROLE_BINDING)
    bound: Document = {}
    if node:
        await api.request("create", "core/v1/nodes", {"metadata": {"name": node}})
        spec = {
            "serviceAccountName": "gpu-driver",
            "nodeName": node,
            "containers": [{"name": "plugin", "image": "plugin"}],
        }
        pod = {"metadata": {"name": "plugin", "namespace": "gpu-driver"}, "spec": spec}
        made = await api.request("create", "core/v1/pods@gpu-driver", pod)
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "plugin", "uid": made["metadata"]["uid"]}
        bound = {"boundObjectRef": reference}
    token = await api.request(
        "create",
        "core/v1/serviceaccounts/gpu-driver/token@gpu-driver",
        {"spec": {"audiences": [], "expirationSeconds": 600, **bound}},
    )
    server = api.running.server
    key, pod_key = NamespacedName("gpu-driver", "gpu-driver"), NamespacedName("gpu-driver", "plugin")
    await until(lambda: key in server.cache.service_accounts)
    await until(lambda: not node or server.cache.nodes.pod(pod_key) is not None)
    await until(lambda: server.authorizer.authorize(Attributes(UserInfo(USER), "create", **SLICES)).allowed)
    user = server.authenticator.authenticate(
        authorization_header=f"Bearer {token['status']['token']}", peer_certificate=None, now=server.clock.now()
    )
    return Driver(api, user)


async def refused(driver: Driver, *arguments: Any) -> str:
    with pytest.raises(APIError) as caught:
        await driver.send(*arguments)
    return caught.value.message.partition("denied request: ")[2]


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
async def test_a_driver_writes_the_slices_of_its_node_alone(api: Local, version: str) -> None:
    driver = await install(api)
    await driver.send("create", version, "", slice_on("node-1", version))
    await driver.send("update", version, "slice-node-1", slice_on("node-1", version, labels={"a": "b"}))
    other = "this user running on node 'node-1' may not modify resourceslices on node 'node-2'"
    assert await refused(driver, "create", version, "", slice_on("node-2", version)) == other
    shared = "this user running on node 'node-1' may not modify cluster resourceslices"
    assert await refused(driver, "create", version, "", slice_on("", version)) == shared
    # What others have written is protected as well.
    await api.request("create", f"resource.k8s.io/{version}/resourceslices", slice_on("node-2", version))
    changed = slice_on("node-2", version, labels={"a": "b"})
    assert await refused(driver, "update", version, "slice-node-2", changed) == other
    assert await refused(driver, "delete", version, "slice-node-2") == other
    assert await refused(driver, "deletecollection", version) == other
    await api.request("delete", f"resource.k8s.io/{version}/resourceslices/slice-node-2")


async def test_a_user_without_a_node_writes_nothing(api: Local) -> None:
    driver = await install(api, node="")
    assert await refused(driver, "create", "v1", "", slice_on("node-1", "v1")) == "no node association found for user"
