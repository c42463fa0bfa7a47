"""Fields that a runtime may ignore, and the warning about them."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.cdi import ContainerEdits
from dray.node.agent.pod.optional_fields import optional_fields
from dray.node.runtimes.process.limitations import warnings_for
from dray.node.runtimes.runtime import ContainerSpec, Sandbox, ignored_fields
from tests.unit.node.agent.builders import container, pod

RUNTIME_DEFAULT = {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("spec", "own", "fields"),
    [
        ({}, {}, ()),
        ({"dnsPolicy": "ClusterFirst", "shareProcessNamespace": False, "hostUsers": True}, {}, ()),
        ({"shareProcessNamespace": True, "hostUsers": False}, {}, ("hostUsers", "shareProcessNamespace")),
        ({"dnsPolicy": "None", "hostAliases": [{"ip": "192.0.2.1"}]}, {}, ("dnsPolicy", "hostAliases")),
        ({}, {"tty": True, "stdin": True}, ("stdin", "tty")),
        ({"securityContext": RUNTIME_DEFAULT}, {}, ("securityContext.seccompProfile",)),
        ({"securityContext": RUNTIME_DEFAULT}, {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, ()),
        (
            {"securityContext": RUNTIME_DEFAULT},
            {"securityContext": {"privileged": True}},
            ("securityContext.privileged",),
        ),
        ({}, {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}, ("resources.limits.hugepages",)),
    ],
)
@pytest.mark.behaviour("ST-76")
def test_fields_in_use(spec: dict[str, Any], own: dict[str, Any], fields: tuple[str, ...]) -> None:
    subject = pod(container(**own), **spec)
    assert optional_fields(subject, subject.spec.containers[0]) == fields


@pytest.mark.behaviour("ST-76")
def test_a_runtime_names_what_it_ignores() -> None:
    spec = ContainerSpec(Sandbox("u", "ns", "p", "p", "/logs"), "a", 0, "i", optional_fields=("dnsConfig", "hostPID"))
    assert ignored_fields(spec, "runc", {"dnsConfig", "hostPID"}) == ()
    assert warnings_for(spec, ContainerEdits()) == ("the process runtime ignores dnsConfig",)
