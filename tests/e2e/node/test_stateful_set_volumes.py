"""A StatefulSet whose Pods have volumes of the default class on a real node: the data stays as long as its claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containerd import needs_containerd
from tests.e2e.kubectl.tool import Kubectl, needs_kubectl
from tests.e2e.node.harness import Agent, Cluster

RUNTIMES = ("cri",)
pytestmark = needs_containerd

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      securityContext: {runAsUser: 1000, fsGroup: 2000}
      containers:
      - name: a
        image: busybox
        imagePullPolicy: IfNotPresent
        env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        command: [sh, -c, "echo $NAME >> /data/starts; exec sleep 1000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"""


@needs_kubectl(25)
@pytest.mark.behaviour("ST-02", "ST-07", "ST-40", "ST-41", "ST-42", "ST-43", "ST-44", "ST-45")
async def test_data_stays_as_long_as_its_claim(
    cluster: Cluster, agent: Agent, kubectl: Kubectl, tmp_path: Path
) -> None:
    manifest = tmp_path / "set.yaml"
    manifest.write_text(SET)
    kubectl("apply", "-f", str(manifest))
    kubectl("rollout", "status", "statefulset/db", "--timeout=60s")

    def starts() -> list[list[str]]:
        return sorted(path.read_text().split() for path in (agent.root / "volumes").glob("*/starts"))

    await cluster.until(lambda: starts() == [["db-0"], ["db-1"]])
    folder = next((agent.root / "volumes").iterdir())
    assert (folder.stat().st_gid, folder.stat().st_mode & 0o2770) == (2000, 0o2770)
    # A claim that a Pod uses stays until the Pod is gone.
    kubectl("delete", "pvc", "data-db-1", "--wait=false")
    assert "Terminating" in kubectl("get", "pvc", "data-db-1")
    claim = kubectl("get", "pvc", "data-db-0", "-o", "jsonpath={.spec.storageClassName} {.status.phase}")
    assert claim == "standard Bound"
    # Scaled down and up: the first Pod's data is still there, the second's is removed with its claim.
    kubectl("scale", "statefulset/db", "--replicas=0")
    await cluster.until(lambda: starts() == [["db-0"]])
    kubectl("scale", "statefulset/db", "--replicas=2")
    await cluster.until(lambda: starts() == [["db-0", "db-0"], ["db-1"]])
    policy = '{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Delete"}}}'
    kubectl("patch", "statefulset/db", "--type=merge", "-p", policy)
    owners = "jsonpath={.items[*].metadata.ownerReferences[0].name}"
    await cluster.until(lambda: kubectl("get", "pvc", "-o", owners) == "db db")
    kubectl("delete", "statefulset/db")
    await cluster.until(lambda: not any((agent.root / "volumes").iterdir()))
    assert kubectl("get", "pv", "-o", "name") == ""
