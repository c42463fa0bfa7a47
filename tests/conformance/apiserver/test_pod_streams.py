"""`pods/exec`, `pods/attach` and `pods/portforward` on an in-process server: rights, admission and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, ForbiddenError, NotFoundError
from dray.apiserver.handlers.subresources.streams import stream_options
from tests.local_server import Local

pytestmark = pytest.mark.api_faults

PODS = "core/v1/pods"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


async def created(api: Local, node: str = "n", **spec: Any) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    await api.request("create", "core/v1/nodes", NODE)
    containers = [{"name": name, "image": "i"} for name in spec.pop("names", ("a",))]
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": containers, **({"nodeName": node} if node else {}), **spec},
    }
    await api.request("create", f"{PODS}@default", {"apiVersion": "v1", "kind": "Pod", **body})


async def refused(api: Local, subresource: str, verb: str = "create", pod: str = "p", **query: str) -> APIError:
    with pytest.raises(APIError) as caught:
        await api.request(verb, f"{PODS}/{pod}/{subresource}@default", query=query)
    return caught.value


@pytest.mark.behaviour("EX-03")
async def test_requests_that_cannot_be_served(api: Local) -> None:
    await created(api, names=("a", "b"), initContainers=[{"name": "i", "image": "i"}])
    assert isinstance(await refused(api, "exec", pod="q"), NotFoundError)
    several = "a container name must be specified for pod p, choose one of: [a b]"
    assert (await refused(api, "exec", stdout="1")).message == several
    assert (await refused(api, "attach", container="x")).message == "container x is not valid for pod p"
    for container in ("a", "i"):
        error = await refused(api, "exec", container=container, command="ls", stdout="1")
        assert isinstance(error, BadRequestError)
        assert error.message == "Upgrade request required"
    assert (await refused(api, "portforward")).message == "Upgrade request required"
    text = 'cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax'
    assert (await refused(api, "portforward", ports="80,x")).message == text


@pytest.mark.behaviour("EX-03")
async def test_a_pod_without_a_node(api: Local) -> None:
    await created(api, node="")
    assert (await refused(api, "exec")).message == "pod p does not have a host assigned"


def role(name: str, verbs: list[str]) -> Document:
    rule = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}


async def bound(api: Local, user: str, verbs: list[str]) -> Local:
    group = "rbac.authorization.k8s.io"
    await api.request("create", f"{group}/v1/roles@default", role(user, verbs))
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    await api.request("create", f"{group}/v1/rolebindings@default", binding)
    return Local(api.running, ("system:authenticated",), user)


@pytest.mark.behaviour("EX-02")
async def test_a_get_needs_the_right_to_create(api: Local) -> None:
    await created(api)
    reader, writer = await bound(api, "reader", ["get"]), await bound(api, "writer", ["create", "get"])
    # The server takes in the bindings.
    async with asyncio.timeout(5):
        while "cannot get" in (error := await refused(reader, "exec", "get")).message:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while isinstance(await refused(writer, "exec"), ForbiddenError):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert isinstance(error, ForbiddenError)
    assert error.message == (
        'pods "p" is forbidden: User "reader" cannot create resource "pods/exec" in API group "" '
        'in the namespace "default"'
    )
    for verb in ("get", "create"):
        assert (await refused(writer, "exec", verb)).message == "Upgrade request required"
    assert isinstance(await refused(reader, "exec", "create"), ForbiddenError)


@pytest.mark.behaviour("EX-04")
def test_admission_sees_the_options() -> None:
    query = {"stdin": ["true"], "tty": ["1"], "stdout": ["false"], "container": ["c"], "command": ["ls", "-l"]}
    assert stream_options("exec", query) == {
        "kind": "PodExecOptions",
        "apiVersion": "v1",
        "stdin": True,
        "tty": True,
        "container": "c",
        "command": ["ls", "-l"],
    }
    attach = {"kind": "PodAttachOptions", "apiVersion": "v1", "stdin": True, "tty": True, "container": "c"}
    assert stream_options("attach", query) == attach
    assert stream_options("portforward", {"ports": ["80,81", "82"]})["ports"] == [80, 81, 82]
