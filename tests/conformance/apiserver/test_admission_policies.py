"""Validating admission policies in a server: matching, parameters, actions and Kubernetes' messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, InvalidError, NotFoundError
from dray.apiserver.call import Call
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo
from tests.local_server import Local

GROUP = "admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/validatingadmissionpolicies"
BINDINGS = f"{GROUP}/validatingadmissionpolicybindings"
CONFIG_MAPS = "core/v1/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}


def policy(
    name: str = "p", *, rules: list[Document] | None = None, match: Document | None = None, **spec: Any
) -> Document:
    constraints = {"resourceRules": rules or [RULE], **(match or {})}
    return {"metadata": {"name": name}, "spec": {"matchConstraints": constraints, **spec}}


def binding(name: str = "b", policy_name: str = "p", **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": {"policyName": policy_name, "validationActions": ["Deny"], **spec}}


def config_map(name: str = "c", namespace: str = "default", **data: str) -> Document:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


async def bind(api: Local, made: Document, *bindings: Document) -> None:
    await api.request("create", POLICIES, made)
    for item in bindings or (binding(policy_name=made["metadata"]["name"]),):
        await api.request("create", BINDINGS, item)


async def refused(api: Local, document: Document, verb: str = "create", path: str = "") -> APIError:
    with pytest.raises(APIError) as caught:
        await api.request(verb, path or f"{CONFIG_MAPS}@{document['metadata']['namespace']}", document)
    return caught.value


async def execute(
    api: Local, verb: str, resource: str, body: Any = None, *, name: str = "", namespace: str = "default", **fields: Any
) -> Call:
    """Send a request and return its call, which has warnings and audit annotations."""
    group, _, rest = resource.rpartition("/")
    info = RequestInfo("POST", "", verb, group, "v1", rest, "", namespace, name)
    user = fields.pop("user", UserInfo("tester", groups=("system:masters",)))
    call = Call(info, {}, user, body, "application/json", "test/1", **fields)
    await api.running.server.execute(call)
    return call


@pytest.mark.behaviour("VP-04", "VP-10", "VP-01")
async def test_a_policy_does_nothing_without_a_binding_and_acts_as_soon_as_it_has_one(api: Local) -> None:
    await api.request("create", POLICIES, policy(validations=[{"expression": "object.data.a == 'x'"}]))
    await api.request("create", f"{CONFIG_MAPS}@default", config_map("free", a="y"))
    await api.request("create", BINDINGS, binding())
    error = await refused(api, config_map(a="y"))
    text = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: object.data.a == 'x'"
    assert error.message == f'configmaps "c" is forbidden: {text}'
    status = error.status()
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["details"] == {"name": "c", "kind": "configmaps", "causes": [{"message": text}]}
    await api.request("create", f"{CONFIG_MAPS}@default", config_map("good", a="x"))
    # A change and a deletion count at once, too.
    made = await api.request("get", f"{POLICIES}/p")
    made["spec"]["validations"][0]["expression"] = "object.data.a == 'y'"
    await api.request("update", f"{POLICIES}/p", made)
    await refused(api, config_map("late", a="x"))
    await api.request("delete", f"{BINDINGS}/b")
    await api.request("create", f"{CONFIG_MAPS}@default", config_map("late", a="x"))


@pytest.mark.behaviour("VP-10")
@pytest.mark.parametrize(
    ("reason", "code"),
    [("Unauthorized", 401), ("Forbidden", 403), ("RequestEntityTooLarge", 413), ("Invalid", 422)],
)
async def test_reasons(api: Local, reason: str, code: int) -> None:
    await bind(api, policy(validations=[{"expression": "false", "message": " no ", "reason": reason}]))
    error = await refused(api, config_map())
    assert (error.code, error.reason) == (code, reason)
    assert error.message.endswith("denied request: no")


@pytest.mark.behaviour("VP-10")
@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("'name is ' + object.metadata.name", "name is c"),
        ("'  spaces  '", "spaces"),
        ("'two\\nlines'", "told"),
        ("'   '", "told"),
        ("object.data.missing", "told"),
        ("object.metadata.labels == null ? 'x' : 'y'", "told"),
    ],
)
async def test_message_expressions(api: Local, expression: str, shown: str) -> None:
    validation = {"expression": "false", "message": "told", "messageExpression": expression}
    await bind(api, policy(validations=[validation]))
    assert (await refused(api, config_map())).message.endswith(f"denied request: {shown}")


@pytest.mark.behaviour("VP-10", "VP-05")
async def test_an_error_denies_unless_the_policy_ignores_failures(api: Local) -> None:
    await bind(api, policy(validations=[{"expression": "object.data.missing == 'x'"}]))
    error = await refused(api, config_map(a="x"))
    assert error.message.endswith(
        "denied request: expression 'object.data.missing == 'x'' resulted in error: no such key: missing"
    )
    made = await api.request("get", f"{POLICIES}/p")
    made["spec"]["failurePolicy"] = "Ignore"
    await api.request("update", f"{POLICIES}/p", made)
    await api.request("create", f"{CONFIG_MAPS}@default", config_map(a="x"))


@pytest.mark.behaviour("VP-07")
async def test_variables_are_lazy_and_their_errors_name_them(api: Local) -> None:
    variables = [
        {"name": "bad", "expression": "object.data.missing"},
        {"name": "twice", "expression": "object.data.a + object.data.a"},
        {"name": "size", "expression": "variables.twice.size()"},
    ]
    validations = [
        {"expression": "object.data.a == 'skip' || variables.bad == ''"},
        {"expression": "variables.size == 8", "messageExpression": "'size is ' + string(variables.size)"},
    ]
    await bind(api, policy(variables=variables, validations=validations))
    await api.request("create", f"{CONFIG_MAPS}@default", config_map(a="skip"))
    error = await refused(api, config_map("d", a="other"))
    assert error.message.endswith(
        "expression 'object.data.a == 'skip' || variables.bad == ''' resulted in error: "
        'composited variable "bad" fails to evaluate: no such key: missing'
    )


@pytest.mark.behaviour("VP-07")
async def test_a_policy_has_a_cost_budget(api: Local) -> None:
    loop = "[1,2,3,4,5,6,7,8,9,10].all(x, [1,2,3,4,5,6,7,8,9,10].all(y, [1,2,3,4,5,6,7,8,9,10].all(z, {})))"
    costly = loop.replace("{}", loop.replace("x", "a").replace("y", "b").replace("z", "c").replace("{}", "true"))
    await bind(api, policy(validations=[{"expression": costly}]))
    error = await refused(api, config_map())
    assert error.message.endswith("resulted in error: operation cancelled: actual cost limit exceeded")
    await api.request("delete", f"{POLICIES}/p")
    # Each of these costs some 350,000 units, all of them more than 10,000,000.
    check = "authorizer.group('').resource('pods').check('get').allowed()"
    await bind(api, policy("q", validations=[{"expression": check}] * 30), binding("c", "q"))
    error = await refused(api, config_map())
    assert error.message.endswith(
        "denied request: validation failed due to running out of cost budget, no further validation rules will be run"
    )


@pytest.mark.behaviour("VP-09")
async def test_match_conditions(api: Local) -> None:
    conditions = [
        {"name": "not-mine", "expression": "request.userInfo.username != 'mine'"},
        {"name": "has-a", "expression": "object.data.a == 'x'"},
    ]
    await bind(api, policy(matchConditions=conditions, validations=[{"expression": "false"}]))
    await api.request("create", f"{CONFIG_MAPS}@default", config_map("other", a="y"))
    assert (await refused(api, config_map(a="x"))).message.endswith("failed expression: false")
    error = await refused(api, config_map(b="x"))
    assert error.message.endswith("denied request: expression 'object.data.a == 'x'' resulted in error: no such key: a")
    mine = replace(api, user="mine")
    await mine.request("create", f"{CONFIG_MAPS}@default", config_map("any", b="x"))


MATCHES: dict[str, tuple[Document, list[Document] | None, bool]] = {
    "everything": (
        {},
        [{**RULE, "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
        True,
    ),
    "another resource": ({}, [{**RULE, "resources": ["secrets"]}], False),
    "only subresources": ({}, [{**RULE, "resources": ["configmaps/status"]}], False),
    "all with subresources": ({}, [{**RULE, "resources": ["*/*"]}], True),
    "another operation": ({}, [{**RULE, "operations": ["DELETE"]}], False),
    "another version": ({}, [{**RULE, "apiVersions": ["v2"]}], False),
    "namespaced": ({}, [{**RULE, "scope": "Namespaced"}], True),
    "cluster": ({}, [{**RULE, "scope": "Cluster"}], False),
    "by name": ({}, [{**RULE, "resourceNames": ["c"]}], True),
    "another name": ({}, [{**RULE, "resourceNames": ["d"]}], False),
    "excluded": ({"excludeResourceRules": [RULE]}, None, False),
    "object selector": ({"objectSelector": {"matchLabels": {"a": "b"}}}, None, True),
    "another object": ({"objectSelector": {"matchLabels": {"a": "c"}}}, None, False),
    "namespace selector": (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
        None,
        True,
    ),
    "another namespace": (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
        None,
        False,
    ),
}


@pytest.mark.behaviour("VP-04", "WH-05")
@pytest.mark.parametrize("name", MATCHES)
async def test_matching(api: Local, name: str) -> None:
    match, rules, matches = MATCHES[name]
    document = config_map()
    document["metadata"]["labels"] = {"a": "b"}
    await bind(api, policy(match=match, rules=rules, validations=[{"expression": "false"}]))
    if matches:
        await refused(api, document)
    else:
        await api.request("create", f"{CONFIG_MAPS}@default", document)


@pytest.mark.behaviour("VP-04")
async def test_a_binding_narrows_its_policy(api: Local) -> None:
    narrow = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    await bind(api, policy(validations=[{"expression": "false"}]), binding(matchResources=narrow))
    await api.request("create", f"{CONFIG_MAPS}@default", config_map())
    await refused(api, config_map(namespace="kube-system"))


SLICES = "resource.k8s.io/v1beta1/resourceslices"
SLICE_RULE = {
    "apiGroups": ["resource.k8s.io"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["resourceslices"],
}


def resource_slice(version: str) -> Document:
    device = {"name": "d", "attributes": {"a": {"int": 1}}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}} if version == "v1beta1" else device],
        },
    }


@pytest.mark.behaviour("VP-04", "WH-05")
async def test_another_version_is_converted_to_the_one_that_the_policy_names(api: Local) -> None:
    # In v1beta1 attributes are below `basic`.
    expression = (
        "object.spec.devices.all(d, d.attributes.a.int == 2) || object.apiVersion != 'resource.k8s.io/v1' "
        "|| request.kind.version != 'v1' || request.requestKind.version != 'v1beta1'"
    )
    await bind(api, policy(rules=[SLICE_RULE], validations=[{"expression": expression, "message": "converted"}]))
    error = await refused(api, resource_slice("v1beta1"), path=SLICES)
    assert error.message.endswith("denied request: converted")
    made = await api.request("get", f"{POLICIES}/p")
    made["spec"]["matchConstraints"]["matchPolicy"] = "Exact"
    await api.request("update", f"{POLICIES}/p", made)
    await api.request("create", SLICES, resource_slice("v1beta1"))


@pytest.mark.behaviour("VP-05", "VP-06")
async def test_what_expressions_see(api: Local) -> None:
    expressions = [
        "request.kind.group == '' && request.kind.version == 'v1' && request.kind.kind == 'ConfigMap'",
        "request.resource.resource == 'configmaps' && request.requestResource.version == 'v1'",
        "request.name == 'c' && request.namespace == 'default' && request.dryRun == false",
        "request.userInfo.username == 'tester' && 'system:masters' in request.userInfo.groups",
        "!has(request.subResource) && request.options.kind == 'CreateOptions'",
        "request.operation == 'CREATE' && oldObject == null && object.kind == 'ConfigMap'",
        "namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default'",
        "namespaceObject.metadata.creationTimestamp < timestamp('2100-01-01T00:00:00Z')",
        "namespaceObject.status.phase == 'Active'",
        "authorizer.requestResource.check('create').allowed()",
        "!authorizer.serviceAccount('default', 'nobody').requestResource.check('create').allowed()",
        "authorizer.path('/healthz').check('get').allowed()",
        "authorizer.group('').resource('pods').namespace('default').name('x').check('get').reason() == ''",
    ]
    await bind(api, policy(validations=[{"expression": text} for text in expressions]))
    await api.request("create", f"{CONFIG_MAPS}@default", config_map())


@pytest.mark.behaviour("VP-04", "VP-05", "VP-13")
async def test_updates_and_deletes(api: Local) -> None:
    rule = {**RULE, "operations": ["UPDATE", "DELETE"]}
    expression = (
        "request.operation == 'DELETE' ? oldObject.data.a != 'kept' && object == null "
        ": object.data.a != oldObject.data.a"
    )
    await bind(api, policy(rules=[rule], validations=[{"expression": expression}]))
    made = await api.request("create", f"{CONFIG_MAPS}@default", config_map(a="kept"))
    await refused(api, made | {"data": {"a": "kept", "b": "c"}}, "update", f"{CONFIG_MAPS}/c@default")
    await refused(api, made, "delete", f"{CONFIG_MAPS}/c@default")
    await api.request("update", f"{CONFIG_MAPS}/c@default", made | {"data": {"a": "free"}})
    await api.request("delete", f"{CONFIG_MAPS}/c@default")


@pytest.mark.behaviour("VP-08", "VP-05")
async def test_parameters_by_name_and_by_selector(api: Local) -> None:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    rule = {**RULE, "resources": ["secrets"]}
    validation = {"expression": "object.metadata.name.startsWith(params.data.prefix)", "message": "prefix"}
    reference = {"name": "limits", "namespace": "kube-system", "parameterNotFoundAction": "Deny"}
    await bind(api, policy(rules=[rule], paramKind=kind, validations=[validation]), binding(paramRef=reference))
    secrets = "core/v1/secrets@default"
    error = await refused(api, {"metadata": {"name": "a", "namespace": "default"}}, path=secrets)
    assert error.message.endswith(
        "denied request: failed to configure binding: no params found for policy binding with `Deny` "
        "parameterNotFoundAction"
    )
    await api.request("create", f"{CONFIG_MAPS}@kube-system", config_map("limits", "kube-system", prefix="ok-"))
    await api.request("create", secrets, {"metadata": {"name": "ok-1", "namespace": "default"}})
    assert (await refused(api, {"metadata": {"name": "a", "namespace": "default"}}, path=secrets)).message.endswith(
        "denied request: prefix"
    )
    # By selector, for each parameter in the namespace of the request.
    made = await api.request("get", f"{BINDINGS}/b")
    made["spec"]["paramRef"] = {"selector": {"matchLabels": {"p": "q"}}, "parameterNotFoundAction": "Allow"}
    await api.request("update", f"{BINDINGS}/b", made)
    await api.request("create", secrets, {"metadata": {"name": "free", "namespace": "default"}})
    for name, prefix in (("one", "ok"), ("two", "ok-2")):
        document = config_map(name, prefix=prefix)
        document["metadata"]["labels"] = {"p": "q"}
        await api.request("create", f"{CONFIG_MAPS}@default", document)
    await api.request("create", secrets, {"metadata": {"name": "ok-2", "namespace": "default"}})
    await refused(api, {"metadata": {"name": "ok-3", "namespace": "default"}}, path=secrets)


@pytest.mark.behaviour("VP-08")
async def test_parameters_that_cannot_be_found(api: Local) -> None:
    kind = {"apiVersion": "example.com/v1", "kind": "Limit"}
    reference = {"name": "limits", "parameterNotFoundAction": "Deny"}
    await bind(api, policy(paramKind=kind, validations=[{"expression": "params.x"}]), binding(paramRef=reference))
    assert (await refused(api, config_map())).message.endswith(
        "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced "
        "by paramKind: 'example.com/v1, Kind=Limit'"
    )
    await api.request("delete", f"{POLICIES}/p")
    rule = {**RULE, "resources": ["namespaces"]}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    await bind(
        api,
        policy("q", rules=[rule], paramKind=kind, validations=[{"expression": "true"}]),
        binding("c", "q", paramRef=reference),
    )
    with pytest.raises(APIError) as caught:
        await api.request("create", "core/v1/namespaces", {"metadata": {"name": "n"}})
    assert caught.value.message.endswith(
        "failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped "
        "resources"
    )


@pytest.mark.behaviour("VP-11")
async def test_warnings_and_audit_annotations(api: Local) -> None:
    annotations = [
        {"key": "name", "valueExpression": "'was ' + object.metadata.name"},
        {"key": "none", "valueExpression": "null"},
    ]
    validations = [{"expression": "true"}, {"expression": "object.data.a == 'x'", "message": "not x"}]
    await bind(
        api,
        policy(validations=validations, auditAnnotations=annotations),
        binding("audit", validationActions=["Audit", "Warn"]),
    )
    call = await execute(api, "create", "configmaps", config_map(a="y"), audit={})
    text = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'audit': not x"
    assert call.warnings == [text]
    failure = (
        '[{"message":"not x","policy":"p","binding":"audit","expressionIndex":1,"validationActions":["Audit","Warn"]}]'
    )
    assert call.audit is not None
    del call.audit["authorization.k8s.io/decision"], call.audit["authorization.k8s.io/reason"]
    assert call.audit == {"p/name": "was c", "validation.policy.admission.k8s.io/validation_failure": failure}


@pytest.mark.behaviour("WH-07")
async def test_policies_never_guard_policies(api: Local) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    await bind(api, policy(rules=[rule], validations=[{"expression": "false"}]))
    await refused(api, config_map())
    await api.request("delete", f"{BINDINGS}/b")
    await api.request("delete", f"{POLICIES}/p")
    await api.request("create", f"{CONFIG_MAPS}@default", config_map())


BAD: dict[str, tuple[Document, str]] = {
    "not a bool": ({"validations": [{"expression": "1"}]}, "spec.validations[0].expression: {}: must evaluate to bool"),
    "undeclared": (
        {"validations": [{"expression": "params.x"}]},
        "undeclared reference to 'params' (in container '')",
    ),
    "a later variable": (
        {
            "variables": [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}],
            "validations": [{"expression": "true"}],
        },
        "undefined field 'b'",
    ),
    "a name": (
        {"variables": [{"name": "a-b", "expression": "1"}], "validations": [{"expression": "true"}]},
        "name is not a valid CEL identifier",
    ),
    "a message": (
        {"validations": [{"expression": "true", "messageExpression": "1"}]},
        "must evaluate to string",
    ),
    "an annotation": (
        {"auditAnnotations": [{"key": "a", "valueExpression": "1"}]},
        "must evaluate to one of [string null_type]",
    ),
    "an empty message": ({"validations": [{"expression": "true", "message": " "}]}, "must be non-empty if specified"),
    "line breaks": ({"validations": [{"expression": "true", "message": "a\rb"}]}, "must not contain line breaks"),
    "no authorizer in messages": (
        {"validations": [{"expression": "true", "messageExpression": "authorizer.path('x').check('y').reason()"}]},
        "undeclared reference to 'authorizer'",
    ),
}


@pytest.mark.behaviour("VP-02")
async def test_expressions_may_have_several_lines(api: Local) -> None:
    lines: list[Document] = [{"expression": "true &&\n true"}, {"expression": "true", "message": "a message\n"}]
    await api.request("create", POLICIES, policy(validations=lines))


@pytest.mark.behaviour("VP-02")
@pytest.mark.parametrize("name", BAD)
async def test_bad_policies(api: Local, name: str) -> None:
    spec, text = BAD[name]
    with pytest.raises(InvalidError) as caught:
        await api.request("create", POLICIES, policy(**spec))
    assert text.partition("{}: ")[2] or text in caught.value.message
    assert (text.partition("{}: ")[2] or text) in caught.value.message


async def configurator(api: Local, *rules: Document) -> Local:
    """A user who may write policies, and what the rules allow."""
    group = "rbac.authorization.k8s.io"
    own = {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    await api.request("create", f"{group}/v1/clusterroles", {"metadata": {"name": "c"}, "rules": [own, *rules]})
    subject = {"apiGroup": group, "kind": "User", "name": "alice"}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "c"}
    made = {"metadata": {"name": "c"}, "roleRef": reference, "subjects": [subject]}
    await api.request("create", f"{group}/v1/clusterrolebindings", made)
    alice = Local(api.running, (), "alice")

    async with asyncio.timeout(5):
        # The server takes in the binding.
        while (await refused(alice, {"metadata": {}}, path=POLICIES)).code == 403:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return alice


@pytest.mark.behaviour("VP-03")
async def test_parameters_must_be_readable_by_who_configures_them(api: Local) -> None:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    subject = policy(paramKind=kind, validations=[{"expression": "params.data.a == 'b'"}])
    named = binding(paramRef={"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"})
    selected = binding("c", paramRef={"selector": {}, "namespace": "default", "parameterNotFoundAction": "Deny"})
    one = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["limits"], "verbs": ["get"]}
    alice = await configurator(api, one)
    error = await refused(alice, subject, path=POLICIES)
    assert error.code == 422
    assert error.message == (
        'ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: '
        'user &{alice  [system:authenticated] map[]} must have "get" permission on all objects of the referenced '
        "paramKind (kind=ConfigMap, apiVersion=v1)"
    )
    await api.request("create", POLICIES, subject)
    # What is there already is not checked again.
    made = await alice.request("get", f"{POLICIES}/p")
    await alice.request("update", f"{POLICIES}/p", made | {"metadata": {**made["metadata"], "labels": {"a": "b"}}})
    await alice.request("create", BINDINGS, named)
    error = await refused(alice, selected, path=BINDINGS)
    assert error.message.endswith(
        "spec.paramRef: Forbidden: user &{alice  [system:authenticated] map[]} does not have "
        '"list" permission on the object referenced by paramRef'
    )
    # Of a policy that is not there, the kind of the parameters is unknown.
    other = binding("d", "unknown", paramRef=named["spec"]["paramRef"])
    await refused(alice, other, path=BINDINGS)
    await api.request("create", BINDINGS, selected)


@pytest.mark.behaviour("VP-05")
async def test_a_binding_is_the_creation_of_a_binding(api: Local) -> None:
    """A guard of `pods/binding` for CREATE, as Kubernetes sends it, must not be passed by."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    expression = "object.kind == 'Binding' && object.target.name != 'forbidden' && oldObject == null"
    await bind(api, policy(rules=[rule], validations=[{"expression": expression}]))
    await api.request("create", "core/v1/serviceaccounts@default", {"metadata": {"name": "default"}})
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api.request("create", "core/v1/pods@default", pod)

    def to(node: str) -> Document:
        labels, annotations = {"chosen": "yes"}, {"by": "me"}
        metadata = {"name": "p", "labels": labels, "annotations": annotations}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": node}}

    path = "core/v1/pods/p/binding@default"
    error = await refused(api, to("forbidden") | {"metadata": {"namespace": "default"}}, path=path)
    assert error.message.startswith("pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied")
    assert "nodeName" not in (await api.request("get", "core/v1/pods/p@default"))["spec"]
    await api.request("create", path, to("allowed"))
    bound = await api.request("get", "core/v1/pods/p@default")
    assert bound["spec"]["nodeName"] == "allowed"
    assert (bound["metadata"]["labels"], bound["metadata"]["annotations"]) == ({"chosen": "yes"}, {"by": "me"})


@pytest.mark.behaviour("VP-04", "EX-04")
async def test_streams_are_connect_requests_with_their_options(api: Local) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}
    expressions = [
        "request.operation == 'CONNECT' && request.subResource == 'exec' && request.resource.resource == 'pods'",
        "request.kind.kind == 'PodExecOptions' && object.kind == 'PodExecOptions' && request.name == 'p'",
        "request.options == null && oldObject == null",
        "object.command[0] != 'rm'",
    ]
    validations = [{"expression": text} for text in expressions]
    await bind(api, policy(rules=[rule], validations=validations))
    with pytest.raises(APIError) as caught:
        await api.request("create", "core/v1/pods/p/exec@default", query={"command": "rm", "stdout": "1"})
    assert caught.value.message == (
        "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
        "failed expression: object.command[0] != 'rm'"
    )
    # Allowed: the Pod is missing.
    with pytest.raises(NotFoundError):
        await api.request("create", "core/v1/pods/p/exec@default", query={"command": "ls", "stdout": "1"})


async def type_checking(api: Local, made: Document) -> Document:
    """Create a policy and return its status."""
    name = made["metadata"]["name"]
    await api.request("create", POLICIES, made)
    found = await api.request("get", f"{POLICIES}/{name}")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    checked: Document = found["status"]["typeChecking"]
    return checked


DEPLOYMENTS = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}


@pytest.mark.behaviour("VP-12")
async def test_expressions_are_checked_against_the_types_of_matched_kinds(api: Local) -> None:
    """As Kubernetes' test "should type check validation expressions"."""
    validations = [
        {"expression": "object.spec.replicas > '1'"},
        {"expression": "object.spec.replicas > 1", "messageExpression": "'replicas ' + object.spec.replicas"},
        {"expression": "object.spec.template.spec.containers.all(c, c.image.startsWith('x/'))"},
        {"expression": "object.spec.nothing == 1"},
    ]
    checked = await type_checking(api, policy(rules=[DEPLOYMENTS], validations=validations))
    warnings = {item["fieldRef"]: item["warning"] for item in checked["expressionWarnings"]}
    assert sorted(warnings) == [
        "spec.validations[0].expression",
        "spec.validations[1].messageExpression",
        "spec.validations[3].expression",
    ]
    assert warnings["spec.validations[0].expression"].startswith(
        "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'"
    )
    assert "undefined field 'nothing'" in warnings["spec.validations[3].expression"]
    # Another generation is checked again.
    made = await api.request("get", f"{POLICIES}/p")
    made["spec"]["validations"] = [{"expression": "object.spec.replicas > 1"}]
    await api.request("update", f"{POLICIES}/p", made)
    made = await api.request("get", f"{POLICIES}/p")
    assert made["status"]["typeChecking"] == {}
    assert made["status"]["observedGeneration"] == made["metadata"]["generation"] == 2


@pytest.mark.behaviour("VP-12")
async def test_what_is_not_checked_has_no_warnings(api: Local) -> None:
    wrong = [{"expression": "object.spec.nothing == 1"}]
    for number, rule in enumerate(
        (
            {**DEPLOYMENTS, "resources": ["*"]},
            {**DEPLOYMENTS, "apiGroups": ["*"]},
            {**DEPLOYMENTS, "apiVersions": ["*"]},
            {**DEPLOYMENTS, "resources": ["unknown"]},
        )
    ):
        assert await type_checking(api, policy(f"p{number}", rules=[rule], validations=wrong)) == {}
    # Fields of any content, and kinds within kinds.
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps", "secrets"]}
    expressions = [
        {"expression": "object.data['a'] == 'b'"},
        {"expression": "object.metadata.labels.exists(k, k == 'a') || oldObject.metadata.name == 'b'"},
        {"expression": "object.metadata.creationTimestamp < timestamp('2100-01-01T00:00:00Z')"},
    ]
    checked = await type_checking(api, policy("q", rules=[rule], validations=expressions))
    # The data of a Secret is bytes.
    (warning,) = checked["expressionWarnings"]
    assert warning["warning"].startswith("v1, Kind=Secret: ERROR")


@pytest.mark.behaviour("VP-12")
async def test_custom_resources_and_variables_are_checked(api: Local) -> None:
    spec = {"type": "object", "properties": {"size": {"type": "integer"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"plural": "gadgets", "kind": "Gadget"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    definition = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    path = "apiextensions.k8s.io/v1/customresourcedefinitions"
    await api.request("create", path, {"metadata": {"name": "gadgets.example.com"}, "spec": definition})
    rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["gadgets"]}
    variables = [{"name": "size", "expression": "object.spec.size"}]
    validations = [{"expression": "variables.size == 'large'"}, {"expression": "variables.size > 1"}]
    checked = await type_checking(api, policy(rules=[rule], variables=variables, validations=validations))
    (warning,) = checked["expressionWarnings"]
    assert warning["fieldRef"] == "spec.validations[0].expression"
    assert warning["warning"].startswith("example.com/v1, Kind=Gadget: ERROR: <input>:1:16: found no matching overload")
