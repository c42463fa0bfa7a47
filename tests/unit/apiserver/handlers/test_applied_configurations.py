"""A configuration that an in-process client applies is its own: the server sets defaults in a copy."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.api.document import Document, copy_document
from dray.client.interface import LocalRequest
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server

CONTAINERS: dict[str, Document] = {
    "without resources": {"name": "c", "image": "i"},
    "with resources": {"name": "c", "image": "i", "resources": {"limits": {"memory": "1024Mi"}}},
    "with a probe": {"name": "c", "image": "i", "livenessProbe": {"httpGet": {"port": 80}}},
}


def configuration(resource: str, container: Document) -> Document:
    spec: Document = {"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]}
    if resource == "pods":
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    selected = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": selected}


def request(group: str, resource: str, body: Document) -> LocalRequest:
    more: dict[str, Any] = {"content_type": "application/apply-patch+yaml", "query": {"fieldManager": "test"}}
    user = ("admin", ("system:masters",))
    return LocalRequest(*user, "patch", group, "v1", resource, "default", "x", user_agent="test", body=body, **more)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("group", "resource"), [("", "pods"), ("apps", "deployments")])
async def test_an_applied_configuration_is_not_changed(group: str, resource: str, container: str) -> None:
    body = configuration(resource, copy_document(CONTAINERS[container]))
    before = copy_document(body)
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        await server.handle(request(group, resource, body))
        assert body == before
        if resource == "deployments":
            # A container that is not merged with a stored one.
            added = copy_document(CONTAINERS[container]) | {"name": "added"}
            body["spec"]["template"]["spec"]["containers"].append(added)
            before = copy_document(body)
            await server.handle(request(group, resource, body))
            assert body == before
