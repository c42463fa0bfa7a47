"""Validation of Pods: each row changes a valid pod and has the expected errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.defaults.pod_spec import default_pod
from dray.api.field_errors import Path
from dray.api.validation.core_v1_pod import (
    validate_pod_create,
    validate_pod_status_update,
    validate_pod_update,
    validate_template,
)

Spec = dict[str, Any]


def pod(spec: Spec | None = None, *, container: Spec | None = None) -> dict[str, Any]:
    """Return a defaulted pod with one container and the given changes."""
    full: Spec = {"containers": [{"name": "c", "image": "pause", **(container or {})}], **(spec or {})}
    default_pod(full)
    return {"metadata": {"name": "p", "namespace": "ns"}, "spec": full}


def texts(errors: list[Any]) -> list[str]:
    return [str(error) for error in errors]


LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)

CONTAINER_ROWS: dict[str, tuple[Spec, list[str]]] = {
    "good": ({}, []),
    "no name": ({"name": ""}, ["spec.containers[0].name: Required value"]),
    "bad name": ({"name": "C_1"}, [f'spec.containers[0].name: Invalid value: "C_1": {LABEL}']),
    "no image": ({"image": ""}, ["spec.containers[0].image: Required value"]),
    "padded image": (
        {"image": " pause"},
        ['spec.containers[0].image: Invalid value: " pause": must not have leading or trailing whitespace'],
    ),
    "pull policy": (
        {"imagePullPolicy": "Often"},
        [
            'spec.containers[0].imagePullPolicy: Unsupported value: "Often": supported values: "Always", '
            '"IfNotPresent", "Never"'
        ],
    ),
    "port range": (
        {"ports": [{"containerPort": 70000}]},
        ["spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"],
    ),
    "port protocol": (
        {"ports": [{"containerPort": 80, "protocol": "tcp"}]},
        ['spec.containers[0].ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"'],
    ),
    "duplicate port name": (
        {"ports": [{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]},
        ['spec.containers[0].ports[1].name: Duplicate value: "a"'],
    ),
    "host port taken twice": (
        {"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]},
        ['spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//9"'],
    ),
    "env without name": ({"env": [{"value": "x"}]}, ["spec.containers[0].env[0].name: Required value"]),
    "env value and source": (
        {"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        ['spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty'],
    ),
    "env field": (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}}]},
        [
            'spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.foo": error converting '
            "fieldPath: field label not supported: spec.foo"
        ],
    ),
    "mount of unknown volume": (
        {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        ['spec.containers[0].volumeMounts[0].name: Not found: "v"'],
    ),
    "mounts that others are to see": (
        {"volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]},
        [
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available "
            "only to privileged containers",
        ],
    ),
    "mounts that others see": (
        {
            "volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}],
            "securityContext": {"privileged": True},
        },
        ['spec.containers[0].volumeMounts[0].name: Not found: "v"'],
    ),
    "request above limit": (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        ['spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
    ),
    "negative": (
        {"resources": {"requests": {"cpu": "-1"}}},
        ['spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0'],
    ),
    "unknown resource": (
        {"resources": {"limits": {"foo": "1"}}},
        [
            f'spec.containers[0].resources.{kind}[foo]: Invalid value: "foo": {text}'
            for kind in ("limits", "requests")
            for text in (
                "must be a standard resource type or fully qualified",
                "must be a standard resource for containers",
            )
        ],
    ),
    "probe without handler": (
        {"livenessProbe": {}},
        ["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
    ),
    "two handlers": (
        {"readinessProbe": {"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}},
        ["spec.containers[0].readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
    ),
    "liveness threshold": (
        {"livenessProbe": {"tcpSocket": {"port": "web"}, "successThreshold": 2}},
        ["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"],
    ),
    "termination policy": (
        {"terminationMessagePolicy": "X"},
        [
            'spec.containers[0].terminationMessagePolicy: Unsupported value: "X": supported values: "File", '
            '"FallbackToLogsOnError"'
        ],
    ),
    "user id": (
        {"securityContext": {"runAsUser": -1}},
        [
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: "
            "must be between 0 and 2147483647, inclusive"
        ],
    ),
}


@pytest.mark.parametrize(("change", "expected"), CONTAINER_ROWS.values(), ids=CONTAINER_ROWS)
def test_container(change: Spec, expected: list[str]) -> None:
    given = pod(container=change)
    before = copy.deepcopy(given)
    assert texts(validate_pod_create(given)) == expected
    assert given == before


IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.example.com"
EXTENDED_ROWS: dict[str, tuple[Spec, list[str]]] = {
    "limits alone": ({"limits": {"example.com/gpu": "2"}}, []),
    "equal": ({"requests": {"example.com/gpu": 1}, "limits": {"example.com/gpu": "1"}}, []),
    "implicit name of a class": ({"limits": {IMPLICIT: "1"}}, []),
    "implicit name with a lower request": ({"limits": {IMPLICIT: "2"}, "requests": {IMPLICIT: "1"}}, []),
    "implicit name without a limit": ({"requests": {IMPLICIT: "1"}}, []),
    "implicit name with a higher request": (
        {"limits": {IMPLICIT: "1"}, "requests": {IMPLICIT: "2"}},
        [
            'spec.containers[0].resources.requests: Invalid value: "2": '
            f"must be less than or equal to {IMPLICIT} limit of 1"
        ],
    ),
    # Kubernetes accepts it, and gives no device.
    "fraction of an implicit name": (
        {"limits": {IMPLICIT: "500m"}},
        [
            f'spec.containers[0].resources.{kind}[{IMPLICIT}]: Invalid value: "500m": must be an integer'
            for kind in ("limits", "requests")
        ],
    ),
    "fraction": (
        {"limits": {"example.com/gpu": "0.5"}},
        [
            f'spec.containers[0].resources.{kind}[example.com/gpu]: Invalid value: "500m": must be an integer'
            for kind in ("limits", "requests")
        ],
    ),
    "different": (
        {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}},
        ['spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2'],
    ),
    "no limit": (
        {"requests": {"example.com/gpu": "1"}},
        ["spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"],
    ),
    "bad name": (
        {"limits": {"requests.example.com/gpu": "1"}},
        [
            f"spec.containers[0].resources.{kind}[requests.example.com/gpu]: Invalid value: "
            '"requests.example.com/gpu": doesn\'t follow extended resource name standard'
            for kind in ("limits", "requests")
        ],
    ),
}


@pytest.mark.behaviour("XR-09")
@pytest.mark.behaviour("XR-47")
@pytest.mark.parametrize(("resources", "expected"), EXTENDED_ROWS.values(), ids=EXTENDED_ROWS)
def test_extended_resources(resources: Spec, expected: list[str]) -> None:
    assert texts(validate_pod_create(pod(container={"resources": resources}))) == expected


@pytest.mark.behaviour("XR-10")
def test_zero_of_an_extended_resource_is_fine() -> None:
    assert validate_pod_create(pod(container={"resources": {"limits": {"example.com/gpu": "0"}}})) == []


@pytest.mark.behaviour("XR-10")
def test_ephemeral_containers_have_no_resources() -> None:
    old = pod()
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [
        {"name": "e", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}
    ]
    default_pod(new["spec"])
    assert "spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container" in texts(
        validate_pod_update(new, old)
    )


BAD_SEARCH = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
)
LONG_SEARCHES = "[" + ",".join(['"' + ".".join(["a" * 60] * 4) + '"'] * 9) + "]"
SPEC_ROWS: dict[str, tuple[Spec, list[str]]] = {
    "no containers": ({"containers": []}, ["spec.containers: Required value"]),
    "same name twice": (
        {"containers": [{"name": "c", "image": "a"}, {"name": "c", "image": "b"}]},
        ['spec.containers[1].name: Duplicate value: "c"'],
    ),
    "init container takes a name": (
        {"initContainers": [{"name": "c", "image": "a"}]},
        ['spec.initContainers[0].name: Duplicate value: "c"'],
    ),
    "init container with a probe": (
        {"initContainers": [{"name": "i", "image": "a", "livenessProbe": {"tcpSocket": {"port": 1}}}]},
        [
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without "
            "restartPolicy=Always"
        ],
    ),
    "sidecar with a probe": (
        {
            "initContainers": [
                {"name": "i", "image": "a", "restartPolicy": "Always", "livenessProbe": {"tcpSocket": {"port": 1}}}
            ]
        },
        [],
    ),
    "restart policy": (
        {"restartPolicy": "Sometimes"},
        [
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
        ],
    ),
    "deadline": (
        {"activeDeadlineSeconds": 0},
        ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
    ),
    "toleration operator": (
        {"tolerations": [{"operator": "Equal", "value": "x"}]},
        [
            'spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which '
            'means "match all values and all keys"'
        ],
    ),
    "toleration seconds": (
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 1}]},
        [
            "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when "
            "`tolerationSeconds` is set"
        ],
    ),
    "node affinity without terms": (
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
        [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: "
            "Required value: must have at least one node selector term"
        ],
    ),
    "gates twice": (
        {"schedulingGates": [{"name": "a"}, {"name": "a"}]},
        ['spec.schedulingGates[1]: Duplicate value: "a"'],
    ),
    "hostname": ({"hostname": "A"}, [f'spec.hostname: Invalid value: "A": {LABEL}']),
    "two volume sources": (
        {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]},
        ["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
    ),
    "volume twice": (
        {"volumes": [{"name": "v"}, {"name": "v"}]},
        ['spec.volumes[1].name: Duplicate value: "v"'],
    ),
    "secret volume": (
        {"volumes": [{"name": "v", "secret": {}}]},
        ["spec.volumes[0].secret.secretName: Required value"],
    ),
    "spread": (
        {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        ["spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"],
    ),
    "dns none": (
        {"dnsPolicy": "None"},
        ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    ),
    "search paths": (
        {"dnsConfig": {"searches": [".", "a.b.", "_tcp.a_b", "a..b", "A", "a\nnameserver 192.0.2.1"]}},
        [
            f'spec.dnsConfig.searches[{index}]: Invalid value: "{shown}": {BAD_SEARCH}'
            for index, shown in ((3, "a..b"), (4, "A"), (5, r"a\nnameserver 192.0.2.1"))
        ],
    ),
    "long search paths": (
        {"dnsConfig": {"searches": [".".join(["a" * 60] * 4)] * 9}},
        [
            f"spec.dnsConfig.searches: Invalid value: {LONG_SEARCHES}: must not have more than 2048 characters "
            "(including spaces) in the search list"
        ],
    ),
    "claim that no container may use": (
        {"containers": [{"name": "c", "image": "a", "resources": {"claims": [{"name": "x"}]}}]},
        [
            'spec.containers[0].resources.claims[0]: Not found: "x": must be one of the names in '
            "pod.spec.resourceClaims which is empty"
        ],
    ),
    "ephemeral containers at creation": (
        {"ephemeralContainers": [{"name": "e", "image": "i"}]},
        ["spec.ephemeralContainers: Forbidden: cannot be set on create"],
    ),
}


@pytest.mark.parametrize(("change", "expected"), SPEC_ROWS.values(), ids=SPEC_ROWS)
def test_spec(change: Spec, expected: list[str]) -> None:
    assert texts(validate_pod_create(pod(change))) == expected


# ---- changes

UPDATABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)


def test_node_name_is_fixed_and_the_difference_shown() -> None:
    # Recorded from kube-apiserver 1.36.4.
    old = pod({"serviceAccountName": "default", "automountServiceAccountToken": False})
    new = copy.deepcopy(old)
    new["spec"]["nodeName"] = "n1"
    (error,) = validate_pod_update(new, old)
    assert error.path == "spec"
    assert error.detail == UPDATABLE + (
        "@@ -42,7 +42,7 @@\n"
        '  "NodeSelector": null,\n'
        '  "ServiceAccountName": "default",\n'
        '  "AutomountServiceAccountToken": false,\n'
        '- "NodeName": "",\n'
        '+ "NodeName": "n1",\n'
        '  "SecurityContext": {\n'
        '   "HostNetwork": false,\n'
        '   "HostPID": false,\n'
    )


GATED = {"schedulingGates": [{"name": "a"}]}
EXISTS, IN_X = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "In", "values": ["x"]}
POD_AFFINITY = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}],
    }
}


def node_affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


ALLOWED: dict[str, tuple[Spec, Spec]] = {
    "image": ({}, {"containers": [{"name": "c", "image": "pause:2"}]}),
    "more tolerations": ({}, {"tolerations": [{"key": "a", "operator": "Exists"}]}),
    "toleration seconds": (
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]},
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
    ),
    "shorter deadline": ({"activeDeadlineSeconds": 9}, {"activeDeadlineSeconds": 8}),
    "gates lifted": ({"schedulingGates": [{"name": "a"}]}, {"schedulingGates": []}),
    # As TestMutablePodSchedulingDirectives.
    "gated pod narrowed": (GATED, {**GATED, "nodeSelector": {"zone": "x"}}),
    "gated pod narrowed while its gate is lifted": (GATED, {"nodeSelector": {"zone": "x"}}),
    "gated pod narrowed by affinity": (GATED, {**GATED, "affinity": node_affinity([EXISTS])}),
    "gated pod narrowed by a further expression": (
        {**GATED, "affinity": {**node_affinity([EXISTS]), **POD_AFFINITY}},
        {**GATED, "affinity": {**node_affinity([EXISTS, IN_X]), **POD_AFFINITY}},
    ),
}


@pytest.mark.parametrize(("old", "new"), ALLOWED.values(), ids=ALLOWED)
def test_allowed_changes(old: Spec, new: Spec) -> None:
    changed = pod(new)
    changed["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    assert texts(validate_pod_update(changed, pod(old))) == []


_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"

REFUSED: dict[str, tuple[Spec, Spec, str]] = {
    "gated pod with another selector": (
        {**GATED, "nodeSelector": {"zone": "x"}},
        {**GATED, "nodeSelector": {"zone": "y"}},
        'spec.nodeSelector: Invalid value: {"zone":"y"}: only additions to spec.nodeSelector are allowed '
        "(no mutations or deletions)",
    ),
    "gated pod with another expression": (
        {**GATED, "affinity": node_affinity([EXISTS])},
        {**GATED, "affinity": node_affinity([IN_X])},
        f'{_TERMS}[0]: Invalid value: {{"MatchExpressions":[{{"Key":"b","Operator":"In","Values":["x"]}}],'
        '"MatchFields":null}: only additions are allowed (no mutations or deletions)',
    ),
    "gated pod with another term": (
        {**GATED, "affinity": node_affinity([EXISTS])},
        {**GATED},
        f"{_TERMS}: Invalid value: null: no additions/deletions to non-empty NodeSelectorTerms list are allowed",
    ),
    "containers added": (
        {},
        {"containers": [{"name": "c", "image": "pause"}, {"name": "d", "image": "pause"}]},
        "spec.containers: Forbidden: pod updates may not add or remove containers",
    ),
    "longer deadline": (
        {"activeDeadlineSeconds": 8},
        {"activeDeadlineSeconds": 9},
        "spec.activeDeadlineSeconds: Invalid value: 9: must be less than or equal to previous value",
    ),
    "deadline lifted": (
        {"activeDeadlineSeconds": 8},
        {},
        "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
    ),
    "toleration removed": (
        {"tolerations": [{"key": "a", "operator": "Exists"}]},
        {},
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
    ),
    "gate added": (
        {},
        {"schedulingGates": [{"name": "a"}]},
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a'",
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), REFUSED.values(), ids=REFUSED)
def test_rejected_changes(old: Spec, new: Spec, expected: str) -> None:
    assert texts(validate_pod_update(pod(new), pod(old))) == [expected]


# ---- status


def with_status(status: Spec, **spec: Any) -> dict[str, Any]:
    return {**pod(spec), "status": status}


def test_status() -> None:
    old = with_status({"qosClass": "BestEffort"})
    assert (
        validate_pod_status_update(with_status({"qosClass": "BestEffort", "podIPs": [{"ip": "10.0.0.1"}]}), old) == []
    )
    errors = validate_pod_status_update(
        with_status({"qosClass": "Burstable", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}), old
    )
    assert texts(errors) == [
        'status.podIPs: Invalid value: [{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]: may specify no more than one IP for each '
        "IP family",
        'status.qosClass: Invalid value: "Burstable": field is immutable',
    ]


def test_a_terminated_container_stays_so_when_it_is_not_restarted() -> None:
    ended = {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1}}}]}
    running = {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}
    refused = ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
    for policy, expected in (("Never", refused), ("OnFailure", []), ("Always", [])):
        new, old = (with_status(status, restartPolicy=policy) for status in (running, ended))
        assert texts(validate_pod_status_update(new, old)) == expected


def test_template_has_no_ephemeral_containers() -> None:
    template = {"spec": pod({"ephemeralContainers": [{"name": "e", "image": "i"}]})["spec"]}
    assert texts(validate_template(template, Path("spec.template"))) == [
        "spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"
    ]
    assert texts(validate_template(None, Path("spec.template"))) == ["spec.template: Required value"]


def test_a_gated_pod_has_no_node() -> None:
    assert texts(validate_pod_create(pod({**GATED, "nodeName": "n"}))) == [
        "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
    ]


def test_a_gated_pod_keeps_its_pod_affinity() -> None:
    (error,) = validate_pod_update(pod({**GATED, "affinity": POD_AFFINITY}), pod(GATED))
    assert (error.path, error.detail.startswith(UPDATABLE)) == ("spec", True)
