"""The Pod Security Standards: each control, its versions and its message; policies from labels and configuration."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.pod_security.evaluation import details, evaluate, summary
from dray.api.pod_security.policy import (
    LATEST,
    ConfigurationError,
    Level,
    LevelVersion,
    PodSecurityConfiguration,
    Policy,
    parse_configuration,
    policy_of,
)

BASELINE = LevelVersion(Level.BASELINE)
RESTRICTED = LevelVersion(Level.RESTRICTED)
HARDENED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"


def at(level: Level, minor: int) -> LevelVersion:
    return LevelVersion(level, minor)


def container(name: str = "a", *, context: Document | None = None, **more: Any) -> Document:
    return {"name": name, "image": "x", "securityContext": {**HARDENED, **(context or {})}, **more}


def spec(*containers: Document, **more: Any) -> Document:
    return {"containers": list(containers or [container()]), **more}


def pod_context(**fields: Any) -> Document:
    return spec(securityContext=fields)


def context(**fields: Any) -> Document:
    return spec(container(context=fields))


def message(policy: LevelVersion, pod: Document, annotations: dict[str, str] | None = None) -> str:
    return details(evaluate(policy, {"annotations": annotations or {}}, pod))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            context(appArmorProfile={"type": "Unconfined"}),
            'forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")',
            id="AppArmor",
        ),
        pytest.param(
            context(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN", "CHOWN", "NET_RAW"]}),
            'non-default capabilities (container "a" must not include "NET_RAW", "SYS_ADMIN" in '
            "securityContext.capabilities.add)",
            id="capabilities",
        ),
        pytest.param(
            spec(hostPID=True, hostNetwork=True, hostIPC=True),
            "host namespaces (hostIPC, hostNetwork, hostPID)",
            id="host namespaces",
        ),
        pytest.param(
            spec(volumes=[{"name": "r", "hostPath": {"path": "/"}}, {"name": "s", "hostPath": {"path": "/"}}]),
            'hostPath volumes (volumes "r", "s")',
            id="hostPath",
        ),
        pytest.param(
            spec(container(ports=[{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 8080}])),
            'hostPort (container "a" uses hostPorts 80, 8080)',
            id="host ports",
        ),
        pytest.param(
            spec(
                container(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}),
                container("b", lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.2", "port": 80}}}),
            ),
            'probe or lifecycle host (containers "a", "b" use probe or lifecycle hosts "10.0.0.1", "10.0.0.2")',
            id="probes",
        ),
        pytest.param(
            spec(
                container(context={"privileged": True}), initContainers=[container("i", context={"privileged": True})]
            ),
            'privileged (containers "i", "a" must not set securityContext.privileged=true)',
            id="privileged",
        ),
        pytest.param(
            context(procMount="Unmasked"),
            'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
            id="procMount",
        ),
        pytest.param(
            spec(
                container(context={"seLinuxOptions": {"type": "spc_t"}}),
                securityContext={"seLinuxOptions": {"user": "u"}},
            ),
            'seLinuxOptions (pod and container "a" set forbidden securityContext.seLinuxOptions: type "spc_t"; '
            "user may not be set)",
            id="SELinux",
        ),
        pytest.param(
            pod_context(seLinuxOptions={"role": "r"}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: role may not be set)",
            id="SELinux role",
        ),
        pytest.param(
            pod_context(seccompProfile={"type": "Unconfined"}),
            'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")',
            id="seccomp",
        ),
        pytest.param(
            pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}, {"name": "net.ipv4.tcp_rmem", "value": "1"}]),
            "forbidden sysctls (kernel.msgmax)",
            id="sysctls",
        ),
        pytest.param(
            spec(
                container(context={"windowsOptions": {"hostProcess": True}}),
                securityContext={"windowsOptions": {"hostProcess": True}},
            ),
            'hostProcess (pod and container "a" must not set securityContext.windowsOptions.hostProcess=true)',
            id="Windows",
        ),
    ],
)
def test_controls_of_baseline(pod: Document, expected: str) -> None:
    assert message(BASELINE, pod) == expected
    assert message(RESTRICTED, pod) != ""
    assert message(LevelVersion(Level.PRIVILEGED), pod) == ""


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            spec({"name": "c", "image": "x"}),
            'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)'
            ", "
            'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), '
            'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), '
            'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or '
            '"Localhost")',
            id="nothing set",
        ),
        pytest.param(
            context(capabilities={"drop": ["CHOWN"], "add": ["CHOWN", "NET_BIND_SERVICE"]}),
            'unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]; container '
            '"a" must not include "CHOWN" in securityContext.capabilities.add)',
            id="capabilities replace those of baseline",
        ),
        pytest.param(
            spec(
                volumes=[
                    {"name": "r", "hostPath": {"path": "/"}},
                    {"name": "n", "nfs": {}},
                    {"name": "i", "image": {}},
                    {"name": "e", "emptyDir": {}},
                    {"name": "p", "projected": {}},
                ]
            ),
            'restricted volume types (volumes "r", "n", "i" use restricted volume types "hostPath", "nfs", "unknown")',
            id="volumes replace those of baseline",
        ),
        pytest.param(
            spec(container(context={"runAsNonRoot": False}), securityContext={"runAsNonRoot": False}),
            'runAsNonRoot != true (pod and container "a" must not set securityContext.runAsNonRoot=false)',
            id="explicit root",
        ),
        pytest.param(
            spec(container(context={"runAsUser": 0}), container("b", context={"runAsUser": 0})),
            'runAsUser=0 (containers "a", "b" must not set runAsUser=0)',
            id="user 0",
        ),
        pytest.param(
            context(seccompProfile={"type": "Unconfined"}),
            'seccompProfile (container "a" must not set securityContext.seccompProfile.type to "Unconfined")',
            id="seccomp replaces that of baseline",
        ),
        pytest.param(
            spec(container(context={"procMount": "Unmasked"}), hostUsers=False),
            'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
            id="procMount in a user namespace",
        ),
        pytest.param(
            spec(ephemeralContainers=[{"name": "debug"}], securityContext={"runAsNonRoot": True})
            | {"os": {"name": "linux"}},
            'allowPrivilegeEscalation != false (container "debug" must set '
            "securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "
            '"debug" must set securityContext.capabilities.drop=["ALL"]), seccompProfile (pod or container "debug" '
            'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")',
            id="ephemeral containers",
        ),
    ],
)
def test_controls_of_restricted(pod: Document, expected: str) -> None:
    assert message(RESTRICTED, pod) == expected


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(spec(), id="containers set all"),
        pytest.param(
            spec(
                {
                    "name": "a",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                },
                securityContext={"runAsNonRoot": True, "seccompProfile": {"type": "Localhost"}, "runAsUser": 1},
            ),
            id="the Pod sets its part",
        ),
        pytest.param(context(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}), id="NET_BIND_SERVICE"),
        pytest.param(
            spec(container(context={"runAsUser": 0, "runAsNonRoot": False}), hostUsers=False), id="user namespace"
        ),
        pytest.param(
            spec({"name": "a", "securityContext": {"runAsNonRoot": True}}, os={"name": "windows"}), id="Windows"
        ),
        pytest.param(context(seLinuxOptions={"type": "container_engine_t", "level": "s0"}), id="SELinux type"),
    ],
)
def test_pods_that_meet_restricted(pod: Document) -> None:
    assert message(RESTRICTED, pod) == ""


@pytest.mark.parametrize(
    ("pod", "level", "since", "before"),
    [
        # (the first minor version with the control or relaxation, whether Pods violated the one before it)
        pytest.param(context(allowPrivilegeEscalation=True), Level.RESTRICTED, 8, False, id="escalation"),
        pytest.param(context(capabilities={}), Level.RESTRICTED, 22, False, id="drop ALL"),
        pytest.param(context(runAsUser=0), Level.RESTRICTED, 23, False, id="user 0"),
        pytest.param(context(seccompProfile=None), Level.RESTRICTED, 19, False, id="seccomp"),
        pytest.param(context(seccompProfile={"type": "Unconfined"}), Level.BASELINE, 19, False, id="unconfined"),
        pytest.param(
            spec(container(startupProbe={"tcpSocket": {"host": "h"}})), Level.BASELINE, 34, False, id="probe hosts"
        ),
        pytest.param(context(seLinuxOptions={"type": "container_engine_t"}), Level.BASELINE, 31, True, id="SELinux"),
        pytest.param(
            pod_context(sysctls=[{"name": "net.ipv4.ip_local_reserved_ports"}]), Level.BASELINE, 27, True, id="ports"
        ),
        pytest.param(pod_context(sysctls=[{"name": "net.ipv4.tcp_fin_timeout"}]), Level.BASELINE, 29, True, id="fin"),
        pytest.param(pod_context(sysctls=[{"name": "net.ipv4.tcp_wmem"}]), Level.BASELINE, 32, True, id="wmem"),
        pytest.param(
            spec(container(context={"procMount": "Unmasked"}), hostUsers=False), Level.BASELINE, 35, True, id="userns"
        ),
        pytest.param(spec(container(context={"runAsUser": 0}), hostUsers=False), Level.RESTRICTED, 35, True, id="root"),
        pytest.param(
            spec({"name": "a", "securityContext": {"runAsNonRoot": True}}, os={"name": "windows"}),
            Level.RESTRICTED,
            25,
            True,
            id="Windows",
        ),
    ],
)
def test_controls_apply_from_their_version_on(pod: Document, level: Level, since: int, before: bool) -> None:
    assert bool(message(at(level, since - 1), pod)) is before
    for minor in (since, 99, LATEST):
        assert bool(message(at(level, minor), pod)) is not before


def test_annotations_of_apparmor_and_of_old_seccomp() -> None:
    annotations = {f"{APPARMOR}a": "unconfined", f"{APPARMOR}b": "localhost/x", SECCOMP: "unconfined"}
    assert message(BASELINE, spec(), annotations) == (
        f'forbidden AppArmor profile (annotation must not set AppArmor profile type to "{APPARMOR}a=\\"unconfined\\"")'
    )
    assert message(at(Level.BASELINE, 18), spec(), {SECCOMP: "unconfined", "container." + SECCOMP: "x"}) == (
        f'seccompProfile (forbidden annotation {SECCOMP}="unconfined")'
    )


def test_the_summary_has_no_causes() -> None:
    violations = evaluate(RESTRICTED, {}, spec({"name": "c"}, hostPID=True))
    assert summary(violations) == (
        "host namespaces, allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, "
        "seccompProfile"
    )


def labels(**modes: str) -> dict[str, str]:
    return {f"pod-security.kubernetes.io/{mode.replace('_', '-')}": value for mode, value in modes.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"a": "restricted"}, "privileged:latest privileged:latest privileged:latest", id="no labels"),
        pytest.param(
            labels(enforce="restricted", enforce_version="v1.20"),
            "restricted:v1.20 privileged:latest restricted:v1.20",
            id="warn follows enforce",
        ),
        pytest.param(
            labels(enforce="restricted", warn="privileged", audit="baseline", audit_version="v1.9"),
            "restricted:latest baseline:v1.9 privileged:latest",
            id="each mode",
        ),
        pytest.param(
            labels(enforce="baseline", warn_version="v1.30"),
            "baseline:latest privileged:latest baseline:v1.30",
            id="warn has its own version",
        ),
    ],
)
def test_policies_of_labels(given: dict[str, str], expected: str) -> None:
    policy, errors = policy_of(given, Policy())
    assert (f"{policy.enforce} {policy.audit} {policy.warn}", list(errors)) == (expected, [])


def test_wrong_labels_are_enforced_as_restricted_and_neither_audited_nor_warned_about() -> None:
    given = labels(enforce="strict", enforce_version="v2.0", audit="x", warn="y", warn_version="v1.01")
    policy, errors = policy_of(given, Policy())
    assert (str(policy.enforce), policy.audit.level, policy.warn.level) == (
        "restricted:latest",
        Level.PRIVILEGED,
        Level.PRIVILEGED,
    )
    assert [str(error) for error in errors][:2] == [
        'metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, '
        "baseline, restricted",
        'metadata.labels[pod-security.kubernetes.io/enforce-version]: Invalid value: "v2.0": must be "latest" or '
        '"v1.x"',
    ]
    assert len(errors) == 5


def test_a_configuration_has_defaults_and_exemptions() -> None:
    document = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "baseline", "enforce-version": "v1.30", "warn": "restricted"},
        "exemptions": {"usernames": ["u"], "runtimeClasses": ["r"], "namespaces": ["n"]},
    }
    assert parse_configuration(document) == PodSecurityConfiguration(
        Policy(at(Level.BASELINE, 30), LevelVersion(), RESTRICTED), frozenset("u"), frozenset("r"), frozenset("n")
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "Other"}, "must be a PodSecurityConfiguration of pod-security.admission.config.k8s.io/v1"),
        ({"default": {}}, 'unknown field "default"'),
        ({"defaults": {"enforced": "baseline"}}, 'unknown field "defaults.enforced"'),
        (
            {"defaults": {"warn": "x"}},
            "defaults.warn: Invalid value: 'x': must be one of privileged, baseline, restricted",
        ),
        ({"defaults": {"warn-version": 1}}, "defaults.warn-version: Invalid value: 1: "),
        ({"exemptions": {"usernames": "u"}}, "exemptions.usernames: must be a list of names"),
        ({"exemptions": []}, None),
        ({"defaults": ["x"]}, "defaults: must be a map"),
    ],
)
def test_malformed_configurations_are_refused(change: Document, expected: str | None) -> None:
    kinds = {"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"}
    if expected is None:
        assert parse_configuration({**kinds, **change}) == PodSecurityConfiguration()
        return
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration({**kinds, **change})
    assert str(caught.value).startswith(expected)
