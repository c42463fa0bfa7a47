"""Attacks on nodes through Pods: what Pod Security refuses, warns about and exempts, end to end through RBAC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError, InvalidError
from dray.apiserver.call import Call
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import parse_request
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.runtime.settings import SettingsError
from tests.local_server import Local, until

LABELS = "pod-security.kubernetes.io/"
RBAC = "rbac.authorization.k8s.io"
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONFIGURATION = """
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {usernames: [builder], runtimeClasses: [sandboxed], namespaces: [infra]}
"""
SANDBOXED = {"metadata": {"name": "sandboxed"}, "handler": "gvisor"}


@asynccontextmanager
async def cluster(directory: Path, configuration: str = "") -> AsyncIterator[Local]:
    """Run a server with the default roles, where alice may edit the namespaces `team` and `open`."""
    file = directory / "admission.yaml"
    file.write_text(configuration)
    settings = APIServerSettings(
        data_dir=str(directory / "data"),
        port=0,
        store="memory",
        disable_admission_plugins=("ServiceAccount",),
        admission_control_config_file=str(file) if configuration else "",
    )
    async with apiserver.running(settings) as running:
        admin = Local(running)
        await admin.request("create", "core/v1/namespaces", namespace("open"))
        await admin.request("create", "core/v1/namespaces", namespace("team", enforce="restricted"))
        for name in ("open", "team"):
            binding = {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "edit"},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "alice"}],
            }
            await admin.request("create", f"{RBAC}/v1/rolebindings@{name}", binding)
        cache = running.server.authorizer.rbac
        alice = UserInfo("alice", groups=("system:authenticated",))
        await until(lambda: all(len(cache.rules_for(alice, name).rules) > 5 for name in ("open", "team")))
        yield admin


def user(admin: Local, name: str) -> Local:
    return Local(admin.running, (), name)


def namespace(name: str, **modes: str) -> Document:
    labels = {f"{LABELS}{mode.replace('_', '-')}": value for mode, value in modes.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(name: str, context: Document | None = None, **spec: Any) -> Document:
    containers = [{"name": "c", "image": "x", "securityContext": SAFE if context is None else context}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def deployment(name: str) -> Document:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x", {"privileged": True})["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }


async def warnings_of(admin: Local, method: str, path: str, body: Document) -> list[str]:
    """Send a request as an administrator and return the texts of its Warning headers."""
    patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
    user = UserInfo("admin", groups=("system:masters",))
    call = Call(parse_request(method, path, {}), {}, user, body, patch)
    await admin.running.server.execute(call)
    return call.warnings


async def until_enforced(admin: Local, name: str) -> None:
    """Wait until the server has seen the new policy of a namespace."""
    async with asyncio.timeout(5):
        while True:
            try:
                await admin.request("create", f"core/v1/pods@{name}", pod("probe", {}), query={"dryRun": "All"})
            except ForbiddenError:
                return
            await asyncio.sleep(0)


async def test_edit_in_a_restricted_namespace_does_not_mean_root_on_nodes(tmp_path: Path) -> None:
    root = {"name": "r", "hostPath": {"path": "/"}}
    attacks = {
        "privileged": pod("p", {**SAFE, "privileged": True, "allowPrivilegeEscalation": True}),
        "hostPath": pod("p", volumes=[root]),
        "hostPID": pod("p", hostPID=True),
        "root": pod("p", {**SAFE, "runAsUser": 0}),
        "capabilities": pod("p", {**SAFE, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}),
        "init container": pod(
            "p", initContainers=[{"name": "i", "image": "x", "securityContext": {"privileged": True}}]
        ),
    }
    async with cluster(tmp_path) as admin:
        alice = user(admin, "alice")
        for attack in attacks.values():
            with pytest.raises(ForbiddenError, match='pods "p" is forbidden: violates PodSecurity "restricted:latest"'):
                await alice.request("create", "core/v1/pods@team", attack)
        # Neither the namespace's policy nor a workload's controller is a way around.
        relabel = {"metadata": {"labels": {f"{LABELS}enforce": "privileged"}}}
        with pytest.raises(ForbiddenError):
            await alice.request(
                "patch", "core/v1/namespaces/team", relabel, content_type="application/merge-patch+json"
            )
        await alice.request("create", "apps/v1/deployments@team", deployment("d"))
        controller = user(admin, "system:serviceaccount:kube-system:replicaset-controller")
        with pytest.raises(ForbiddenError, match="violates PodSecurity"):
            await controller.request("create", "core/v1/pods@team", attacks["privileged"])
        # A Pod that meets the policy is created, also in this namespace; any is where nothing is enforced.
        await alice.request("create", "core/v1/pods@team", pod("p"))
        for number, attack in enumerate(attacks.values()):
            await alice.request("create", "core/v1/pods@open", attack | {"metadata": {"name": f"p{number}"}})


async def test_refused_pods_name_every_violation(tmp_path: Path) -> None:
    async with cluster(tmp_path) as admin:
        with pytest.raises(ForbiddenError) as caught:
            await admin.request("create", "core/v1/pods@team", pod("p", {}))
        assert caught.value.message == (
            'pods "p" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false '
            '(container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities '
            '(container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or '
            'container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set '
            'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
        )


async def test_workloads_are_admitted_with_a_warning_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modes = namespace("audited", audit="baseline", warn="baseline", warn_version="v1.30")
    expected = 'privileged (container "c" must not set securityContext.privileged=true)'
    async with cluster(tmp_path) as admin:
        await admin.request("create", "core/v1/namespaces", modes)
        with caplog.at_level(logging.INFO, "dray.apiserver.pod-security"):
            for kind, path, body in (
                ("Pod", "/api/v1/namespaces/audited/pods", pod("p", {"privileged": True})),
                ("Deployment", "/apis/apps/v1/namespaces/audited/deployments", deployment("d")),
            ):
                caplog.clear()
                warnings = await warnings_of(admin, "POST", path, body)
                assert warnings == [f'would violate PodSecurity "baseline:v1.30": {expected}'], kind
                assert f'would violate PodSecurity "baseline:latest": {expected}' in caplog.text, kind
        path = "/apis/apps/v1/namespaces/team/deployments"
        [warning] = await warnings_of(admin, "POST", path, deployment("d"))
        assert warning.startswith('would violate PodSecurity "restricted:latest": privileged (')


async def test_tightening_a_namespace_warns_about_existing_pods(tmp_path: Path) -> None:
    baseline = {"metadata": {"labels": {f"{LABELS}enforce": "baseline"}}}
    async with cluster(tmp_path) as admin:
        for name, context in (("b", {"privileged": True}), ("a", {"privileged": True}), ("c", {}), ("d", None)):
            await admin.request("create", "core/v1/pods@open", pod(name, context))
        warnings = await warnings_of(admin, "PATCH", "/api/v1/namespaces/open", baseline)
        assert warnings == [
            'existing pods in namespace "open" violate the new PodSecurity enforce level "baseline:latest"',
            "a (and 1 other pod): privileged",
        ]
        baseline["metadata"]["labels"]["x"] = "y"
        assert await warnings_of(admin, "PATCH", "/api/v1/namespaces/open", baseline) == []
        relaxed = {"metadata": {"labels": {f"{LABELS}enforce": None}}}
        assert await warnings_of(admin, "PATCH", "/api/v1/namespaces/open", relaxed) == []


async def test_changing_the_image_of_a_violating_pod_is_refused_and_its_labels_are_not(tmp_path: Path) -> None:
    merge = "application/merge-patch+json"
    restricted = {"metadata": {"labels": {f"{LABELS}enforce": "restricted"}}}
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "y"}]
    async with cluster(tmp_path) as admin:
        await admin.request("create", "core/v1/pods@open", pod("p", {}))
        await admin.request("patch", "core/v1/namespaces/open", restricted, content_type=merge)
        await until_enforced(admin, "open")
        alice = user(admin, "alice")
        await alice.request("patch", "core/v1/pods/p@open", {"metadata": {"labels": {"a": "b"}}}, content_type=merge)
        with pytest.raises(ForbiddenError, match="violates PodSecurity"):
            await alice.request("patch", "core/v1/pods/p@open", image, content_type="application/json-patch+json")


async def test_malformed_policies_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as admin:
        with pytest.raises(InvalidError) as caught:
            await admin.request("create", "core/v1/namespaces", namespace("x", enforce="strict"))
        assert caught.value.message == (
            'Namespace "x" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": '
            "must be one of privileged, baseline, restricted"
        )
        wrong = {"metadata": {"labels": {f"{LABELS}warn-version": "1.30"}}}
        with pytest.raises(InvalidError, match=r'must be "latest" or "v1\.x"'):
            await admin.request("patch", "core/v1/namespaces/open", wrong, content_type="application/merge-patch+json")


async def test_configured_defaults_and_exemptions(tmp_path: Path) -> None:
    bad = {"privileged": True}
    async with cluster(tmp_path, CONFIGURATION) as admin:
        with pytest.raises(ForbiddenError, match='violates PodSecurity "baseline:latest": privileged'):
            await admin.request("create", "core/v1/pods@open", pod("p", bad))
        await admin.request("create", "node.k8s.io/v1/runtimeclasses", SANDBOXED)
        await admin.request("create", "core/v1/pods@team", pod("p", bad, runtimeClassName="sandboxed"))
        builder = Local(admin.running, ("system:masters",), "builder")
        await builder.request("create", "core/v1/pods@open", pod("p", bad))
        warnings = await warnings_of(admin, "POST", "/api/v1/namespaces", namespace("infra", enforce="restricted"))
        assert warnings == [
            'namespace "infra" is exempt from Pod Security, and the policy (enforce=restricted:latest) will be ignored'
        ]
        await admin.request("create", "core/v1/pods@infra", pod("p", bad))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("enforce: baseline", "enforce: strict", "defaults.enforce: Invalid value: 'strict'"),
        ("name: PodSecurity", "name: Other", "admission plugin 'Other' has no configuration"),
        ("kind: AdmissionConfiguration", "kind: x", "must be an AdmissionConfiguration of apiserver.config.k8s.io/v1"),
        ("plugins:", "plugins: [", "not valid YAML"),
    ],
)
async def test_malformed_configurations_stop_the_server(tmp_path: Path, old: str, new: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=r"--admission-control-config-file: .*admission\.yaml: ") as caught:
        async with cluster(tmp_path, CONFIGURATION.replace(old, new)):
            pass
    assert expected in str(caught.value)


def counted(admin: Local, name: str) -> set[str]:
    """Return the samples of a metric of Pods."""
    lines = admin.running.metrics.exposition().decode().splitlines()
    return {
        line.removeprefix(name) for line in lines if line.startswith(f"{name}{{") and 'resource="namespace"' not in line
    }


async def test_evaluations_exemptions_and_errors_are_counted_as_by_kube_apiserver(tmp_path: Path) -> None:
    request = 'request_operation="create",resource="%s",subresource=""'
    of_pods, of_controllers = request % "pod", request % "controller"
    async with cluster(tmp_path, CONFIGURATION) as admin:
        versioned = namespace(
            "versioned", enforce="baseline", enforce_version="v1.30", audit="restricted", warn="baseline"
        )
        for document in (
            versioned,
            namespace("later", enforce="baseline", enforce_version="v1.99"),
            namespace("infra"),
        ):
            await admin.request("create", "core/v1/namespaces", document)
        await admin.request("create", "core/v1/pods@versioned", pod("good"))
        await admin.request("create", "core/v1/pods@versioned", pod("audited", {}))
        await admin.request("create", "core/v1/pods@later", pod("good"))
        with pytest.raises(ForbiddenError):
            await admin.request("create", "core/v1/pods@versioned", pod("bad", {"privileged": True}))
        await admin.request("create", "apps/v1/deployments@versioned", deployment("workload"))
        await admin.request("create", "core/v1/pods@infra", pod("exempt", {"privileged": True}))
        await admin.request("create", "node.k8s.io/v1/runtimeclasses", SANDBOXED)
        await admin.request("create", "core/v1/pods@team", pod("sandboxed", {}, runtimeClassName="sandboxed"))
        start = '{decision="%s",mode="%s",policy_level="%s",policy_version="%s",'
        assert counted(admin, "pod_security_evaluations_total") == {
            start % ("allow", "enforce", "baseline", "v1.30") + of_pods + "} 2.0",
            start % ("allow", "enforce", "baseline", "future") + of_pods + "} 1.0",
            start % ("deny", "enforce", "baseline", "v1.30") + of_pods + "} 1.0",
            start % ("deny", "audit", "restricted", "latest") + of_pods + "} 2.0",
            start % ("deny", "audit", "restricted", "latest") + of_controllers + "} 1.0",
            start % ("deny", "warn", "baseline", "latest") + of_controllers + "} 1.0",
        }
        assert counted(admin, "pod_security_exemptions_total") == {"{" + of_pods + "} 2.0"}
        assert counted(admin, "pod_security_errors_total") == set()
