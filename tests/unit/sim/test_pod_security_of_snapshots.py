"""Pod Security judges a Pod of a snapshot as in the cluster, so that a replica creates what the cluster would."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.pod_security.evaluation import evaluate
from dray.api.pod_security.policy import Level, LevelVersion
from tests.kept_fields import FILTER

RESTRICTED: Document = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def spec(context: Document | None = None, **fields: Any) -> Document:
    container = {"name": "c", "image": "i", "command": ["secret"], "securityContext": RESTRICTED | (context or {})}
    return {"containers": [container], **fields}


def volume(**source: Any) -> Document:
    return spec(volumes=[{"name": "v", **source}])


SPECS: dict[str, Document] = {
    "nothing": {"containers": [{"name": "c", "image": "i"}]},
    "restricted": spec(),
    "privileged": spec({"privileged": True}),
    "capability": spec({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}),
    "root": spec({"runAsUser": 0}),
    "procMount": spec({"procMount": "Unmasked"}),
    "unconfined": spec({"seccompProfile": {"type": "Unconfined"}}),
    "profile of the node": spec({"seccompProfile": {"type": "Localhost", "localhostProfile": "secret"}}),
    "AppArmor": spec({"appArmorProfile": {"type": "Unconfined"}}),
    "SELinux": spec({"seLinuxOptions": {"type": "spc_t", "level": "secret"}}),
    "HostProcess": spec({"windowsOptions": {"hostProcess": True, "runAsUserName": "secret"}}),
    "sysctl": spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "secret"}]}),
    "host namespaces": spec(hostPID=True, hostIPC=True, hostNetwork=True),
    "host path": volume(hostPath={"path": "/secret"}),
    "NFS": volume(nfs={"server": "secret", "path": "/"}),
    "image": volume(image={"reference": "secret"}),
    "secret": volume(secret={"secretName": "secret"}),
    "claim": volume(persistentVolumeClaim={"claimName": "c"}),
}


_RESTRICTED: frozenset[str] = frozenset({"restricted", "profile of the node", "secret", "claim"})
ALLOWED = {Level.RESTRICTED: _RESTRICTED, Level.BASELINE: _RESTRICTED | {"nothing", "root", "NFS", "image"}}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("level", [Level.BASELINE, Level.RESTRICTED])
def test_the_violations_are_those_of_the_original(name: str, level: Level) -> None:
    document: Document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SPECS[name]}
    reduced = FILTER.reduced(document)
    assert "secret" not in str(reduced).replace("secretName", "")
    before, after = (
        [item.reason for item in evaluate(LevelVersion(level), pod["metadata"], pod["spec"])]
        for pod in (document, reduced)
    )
    assert before == after
    assert bool(after) is (name not in ALLOWED[level])
