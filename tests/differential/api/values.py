"""Random values of a field: those that Kubernetes accepts for fields of that name, and some that it refuses."""

from __future__ import annotations

import random
from typing import Any, Final

from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type

# By the name of a field: what it may say.
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "Default", "None", "ClusterFirstWithHostNet"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "protocol": ("TCP", "UDP", "SCTP"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Equal", "Gt", "Lt"),
    "scopeName": ("PriorityClass", "Terminating", "BestEffort"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "nodeAffinityPolicy": ("Honor", "Ignore"),
    "nodeTaintsPolicy": ("Honor", "Ignore"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "concurrencyPolicy": ("Allow", "Forbid", "Replace"),
    "completionMode": ("NonIndexed", "Indexed"),
    "podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
    "podManagementPolicy": ("OrderedReady", "Parallel"),
    "unhealthyPodEvictionPolicy": ("IfHealthyBudget", "AlwaysAllow"),
    "sessionAffinity": ("ClientIP", "None"),
    "externalTrafficPolicy": ("Cluster", "Local"),
    "internalTrafficPolicy": ("Cluster", "Local"),
    "ipFamilyPolicy": ("SingleStack", "PreferDualStack", "RequireDualStack"),
    "ipFamilies": ("IPv4", "IPv6"),
    "trafficDistribution": ("PreferClose", "PreferSameZone", "PreferSameNode"),
    "addressType": ("IPv4", "IPv6", "FQDN"),
    "accessModes": ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    "volumeMode": ("Filesystem", "Block"),
    "persistentVolumeReclaimPolicy": ("Retain", "Delete", "Recycle"),
    "reclaimPolicy": ("Retain", "Delete"),
    "volumeBindingMode": ("Immediate", "WaitForFirstConsumer"),
    "mountPropagation": ("None", "HostToContainer", "Bidirectional"),
    "recursiveReadOnly": ("Disabled", "IfPossible", "Enabled"),
    "medium": ("", "Memory", "HugePages"),
    "scheme": ("HTTP", "HTTPS"),
    "procMount": ("Default", "Unmasked"),
    "fsGroupChangePolicy": ("OnRootMismatch", "Always"),
    "supplementalGroupsPolicy": ("Merge", "Strict"),
    "pathType": ("Exact", "Prefix", "ImplementationSpecific"),
    "policyTypes": ("Ingress", "Egress"),
    "allocationMode": ("ExactCount", "All"),
    "failurePolicy": ("Ignore", "Fail"),
    "matchPolicy": ("Exact", "Equivalent"),
    "sideEffects": ("None", "NoneOnDryRun"),
    "reinvocationPolicy": ("Never", "IfNeeded"),
    "validationActions": ("Deny", "Warn", "Audit"),
    "operations": ("CREATE", "UPDATE", "DELETE"),
    "scope": ("Namespaced", "Cluster", "*"),
    "scopes": ("Terminating", "BestEffort", "NotBestEffort", "PriorityClass"),
    "roleRef": ("Role", "ClusterRole"),
    "resizePolicy": ("NotRequired", "RestartContainer"),
    "whenDeleted": ("Retain", "Delete"),
    "whenScaled": ("Retain", "Delete"),
    "metricName": ("cpu", "memory"),
    "policy": ("Static", "Immediate", "Never"),
    "action": ("FailJob", "Ignore", "Count", "FailIndex"),
    "phase": ("Pending", "Running", "Succeeded", "Failed", "Bound", "Available", "Active"),
    "qosClass": ("Guaranteed", "Burstable", "BestEffort"),
    "nodeInclusionPolicy": ("Honor", "Ignore"),
    "finalizers": ("example.com/hold", "kubernetes"),
    "fsType": ("ext4", "xfs"),
    "selectPolicy": ("Max", "Min", "Disabled"),
    "fsGroupPolicy": ("File", "None", "ReadWriteOnceWithFSType"),
    "volumeLifecycleModes": ("Persistent", "Ephemeral"),
    "signerName": ("example.com/a", "kubernetes.io/kube-apiserver-client"),
    "usages": ("client auth", "server auth", "digital signature"),
    "ip": ("10.1.2.3", "127.0.0.1", "2001:db8::1", "10.01.2.3"),
    "podIP": ("10.1.2.3",),
    "hostIP": ("10.1.2.3",),
    "clusterIP": ("None", "10.96.0.77", "192.0.2.1"),
    "clusterIPs": ("None", "10.96.0.78", "2001:db8::5"),
    "externalIPs": ("192.0.2.1", "127.0.0.1"),
    "loadBalancerIP": ("192.0.2.1",),
    "loadBalancerSourceRanges": ("10.0.0.0/8", "192.0.2.0/24"),
    "nameservers": ("1.1.1.1", "8.8.8.8"),
    "searches": ("example.com", "a.b.", "."),
    "addresses": ("10.1.1.2", "2001:db8::2"),
    "cidr": ("10.0.0.0/8", "2001:db8::/32"),
    "except": ("10.1.0.0/16",),
    "cidrs": ("10.20.0.0/16", "2001:db8:1::/64"),
    "podCIDR": ("10.244.0.0/24",),
    "podCIDRs": ("10.244.0.0/24", "2001:db8:2::/64"),
    "externalName": ("example.com", "a.example.com."),
    "host": ("example.com", "*.example.com"),
    "hosts": ("example.com", "*.example.com"),
    "hostname": ("web-0", "a"),
    "subdomain": ("web",),
    "schedule": ("@daily", "*/5 * * * *", "0 0 1 * *"),
    "timeZone": ("UTC", "Europe/Vienna"),
    "expression": ("true", "1 == 1", "device.driver == 'a.example.com'", "object.metadata.name == 'a'"),
    "messageExpression": ("'no'",),
    "path": ("/a", "a", "/a/b", "/"),
    "mountPath": ("/a", "/b", "a"),
    "devicePath": ("/dev/a",),
    "subPath": ("a", "a/b"),
    "subPathExpr": ("$(A)",),
    "image": ("a", "example.com/a:1", "a "),
    "key": ("a", "example.com/a", "node-role.kubernetes.io/control-plane", "cpu"),
    "value": ("a", "b", ""),
    "values": ("a", "b", "1"),
    "labelSelector": (),
    "topologyKey": ("kubernetes.io/hostname", "topology.kubernetes.io/zone"),
    "fieldPath": ("metadata.name", "status.podIP", "metadata.labels['a']", "spec.nodeName"),
    "resource": ("limits.cpu", "requests.memory", "pods", "cpu", "deployments"),
    "resources": ("pods", "deployments", "*", "pods/status"),
    "verbs": ("get", "list", "*"),
    "apiGroups": ("", "apps"),
    "apiGroup": ("", "rbac.authorization.k8s.io", "apps", "snapshot.storage.k8s.io"),
    "nonResourceURLs": ("/a", "/a/*", "*"),
    "kind": ("Pod", "Node", "User", "Group", "ServiceAccount", "Deployment", "PersistentVolumeClaim"),
    "apiVersion": ("v1", "apps/v1", "example.com/v1"),
    "driver": ("a.example.com", "b.example.com", "a"),
    "deviceClassName": ("a", "one.example.com"),
    "matchAttribute": ("a.example.com/a", "b.example.com/numa"),
    "distinctAttribute": ("a.example.com/a",),
    "requests": ("a", "b", "a/b"),
    "nodeName": ("a", "node-1"),
    "storageClassName": ("a", ""),
    "version": ("1.2.3", "2.0.0-rc.1"),
    "runtimeHandler": ("a",),
    "handler": ("a",),
    "email": ("a@example.com",),
    "uid": ("a",),
    "controller": ("example.com/a", "a"),
    "provisioner": ("example.com/a", "a"),
    "attacher": ("a", "a.example.com"),
    "namespace": ("default", "other"),
    "generateName": ("gen-",),
    "reason": ("A", "PodFailed", "Completed"),
    "status": ("True", "False", "Unknown"),
    "message": ("text",),
    "description": ("text",),
    "fsGroup": (),
    "secretName": ("a",),
    "claimName": ("a",),
    "serviceName": ("a", "web"),
    "serviceAccountName": ("a", "default"),
    "schedulerName": ("default-scheduler", "other"),
    "priorityClassName": (),
    "runtimeClassName": (),
    "url": ("https://127.0.0.1:1/", "http://a/", "https://a?b"),
    "policyName": ("none",),
    "paramKind": ("ConfigMap",),
    "reportingComponent": ("a", "example.com/a"),
    "reportingController": ("a", "example.com/a"),
    "reportingInstance": ("a",),
    "matchLabelKeys": ("a", "pod-template-hash"),
    "mismatchLabelKeys": ("b",),
    "containerName": ("a",),
    "resourceName": ("cpu", "memory"),
    "targetRef": (),
    "audiences": ("a",),
    "serverName": ("a",),
    "stopSignal": ("SIGTERM", "SIGUSR1"),
    "os": ("linux", "windows"),
    "default": ("a",),
    "appProtocol": ("http", "kubernetes.io/h2c", "a b"),
    "devices": ("a",),
    "server": ("a",),
    "volumeName": ("a",),
    "loadBalancerClass": ("example.com/a",),
    "backoffLimitPerIndex": (),
    "managedBy": ("example.com/a", "kubernetes.io/job-controller"),
    "succeededIndexes": ("0", "0-2,4"),
    "completedIndexes": ("0", "0-2"),
    "failedIndexes": ("3",),
    "strategy": (),
    "leaseTransitions": (),
    "holderIdentity": ("a",),
    "preferredHolder": ("b",),
    "mode": ("ENFORCED", "PERMISSIVE"),
    "distinguisherMethod": (),
    "domainPrefix": ("a",),
    "unit": ("a",),
}
# `type` says something else in every message.
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "Deployment": ("RollingUpdate", "Recreate"),
    "DaemonSet": ("RollingUpdate", "OnDelete"),
    "StatefulSet": ("RollingUpdate", "OnDelete"),
    "ServiceSpec": ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
    "LimitRangeItem": ("Container", "Pod", "PersistentVolumeClaim"),
    "HostPath": ("", "Directory", "File"),
    "SeccompProfile": ("RuntimeDefault", "Unconfined", "Localhost"),
    "AppArmor": ("RuntimeDefault", "Unconfined"),
    "Metric": ("Resource", "Pods", "Object", "ContainerResource", "External"),
    "Target": ("Utilization", "Value", "AverageValue"),
    "Policy": ("Pods", "Percent"),
    "PriorityLevel": ("Exempt", "Limited"),
    "LimitResponse": ("Queue", "Reject"),
    "Distinguisher": ("ByUser", "ByNamespace"),
    "NodeAddress": ("InternalIP", "Hostname", "ExternalIP"),
    "Event": ("Normal", "Warning"),
    "Condition": ("Ready", "Available", "Approved", "Denied", "DisruptionTarget", "example.com/A"),
    "Secret": ("Opaque", "kubernetes.io/tls", "kubernetes.io/dockerconfigjson", "kubernetes.io/basic-auth"),
}
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "limits": ("cpu", "memory", "example.com/gpu", "hugepages-2Mi", "ephemeral-storage"),
    "requests": ("cpu", "memory", "example.com/gpu", "ephemeral-storage", "storage"),
    "capacity": ("cpu", "memory", "storage", "pods", "example.com/gpu", "a"),
    "allocatable": ("cpu", "memory", "pods"),
    "overhead": ("cpu", "memory"),
    "podFixed": ("cpu", "memory"),
    "hard": ("pods", "requests.cpu", "limits.memory", "count/deployments.apps", "services", "requests.storage"),
    "attributes": ("a", "model", "a.example.com/numa", "b.example.com/x"),
    "counters": ("a", "memory"),
    "default": ("cpu", "memory"),
    "defaultRequest": ("cpu", "memory"),
    "max": ("cpu", "memory"),
    "min": ("cpu", "memory"),
    "maxLimitRequestRatio": ("cpu",),
    "data": ("a", "b.txt", ".c"),
    "stringData": ("a",),
    "binaryData": ("c",),
    "annotations": ("a", "example.com/a"),
}
_LABEL_KEYS: Final = ("a", "b", "example.com/a", "app")
_GOOD: Final[dict[Scalar, tuple[Any, ...]]] = {
    Scalar.STRING: ("a", "b", "a-b", "web", "a.example.com"),
    Scalar.INT32: (1, 2, 3, 5, 80, 443, 30, 0),
    Scalar.INT64: (1, 2, 30, 1000, 0),
    Scalar.DOUBLE: (0.5, 1),
    Scalar.BOOL: (True, False),
    Scalar.BYTES: ("YQ==", "", "YWI="),
    Scalar.TIME: ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"),
    Scalar.MICRO_TIME: ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00Z"),
    Scalar.DURATION: ("1s", "1m30s"),
    Scalar.QUANTITY: ("1", "500m", "1Gi", "2", "100Mi", 2, "1.5", "1e3", "0"),
    Scalar.INT_OR_STRING: (80, 1, "50%", "http", "25%", 0),
    Scalar.ANY: ({"a": "b"}, {"apiVersion": "example.com/v1", "kind": "A", "b": [1]}),
}
_BAD: Final[dict[Scalar, tuple[Any, ...]]] = {
    Scalar.STRING: ("", "A", "a_b", "-a", "a b", "a/b/c", "x" * 64, "x" * 254, "a..b", "/a/../b", "é", "a,b", "."),
    Scalar.INT32: (-1, 65536, 2147483647, -2147483648, 100000, 0),
    Scalar.INT64: (-1, 4294967296, -9223372036854775808, 0),
    Scalar.DOUBLE: (-1, 1e300),
    Scalar.BOOL: (True, False),
    Scalar.BYTES: ("YQ==", "AAAA"),
    Scalar.TIME: ("0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    Scalar.MICRO_TIME: ("0001-01-01T00:00:00Z",),
    Scalar.DURATION: ("-1s", "0"),
    Scalar.QUANTITY: ("-1", "0", "1n", "-500m", "1Ei", "0.0001"),
    Scalar.INT_OR_STRING: (-1, "-1%", "101%", "a_b", "", "HTTP-", 65536, "x" * 16),
    Scalar.ANY: (5, "text", [], {"a": None}),
}
_WRONG: Final[dict[Scalar, tuple[Any, ...]]] = {
    Scalar.STRING: (5, True, ["a"], {"a": "b"}),
    Scalar.INT32: ("5", 1.5, 2**31, True),
    Scalar.INT64: ("5", 1.5, 2**63),
    Scalar.BOOL: ("true", 1),
    Scalar.BYTES: ("%%", 5),
    Scalar.TIME: ("yesterday", 5, "2026-02-30T00:00:00Z"),
    Scalar.MICRO_TIME: ("yesterday",),
    Scalar.DURATION: ("5", "abc"),
    Scalar.QUANTITY: ("abc", "1 Gi", "", True, "1GiB"),
    Scalar.INT_OR_STRING: (1.5, True),
}
# Of rules of hooks and policies.
_OWN_RULE: Final = {
    "apiGroups": "example.com",
    "apiVersions": "v1",
    "resources": "as",
    "operations": "CREATE",
    "scope": "Namespaced",
}
_DEPTH_MAX: Final = 5
# Of the fields that may be left out, so many are given.
_CHANCE: Final = 0.25


class Values:
    """Draws values; `broken` is the chance that one is such as Kubernetes may refuse."""

    def __init__(self, rng: random.Random, broken: float, group: str) -> None:
        self._rng = rng
        self._broken = broken
        # A hook or policy for everything would concern the other objects too.
        self._own_groups = group == "admissionregistration.k8s.io"

    def of(self, name: str, kind: Type, depth: int, owner: str = "") -> Any:
        """A value for a field of that name and type."""
        if isinstance(kind, StructType):
            return self._struct(kind, depth)
        if isinstance(kind, ListOf):
            count = self._rng.choices((1, 2, 0), (6, 3, 1))[0]
            return [self.of(name, kind.element, depth + 1, owner) for _ in range(count)]
        if isinstance(kind, MapOf):
            count = self._rng.choices((1, 2, 0), (6, 2, 1))[0]
            return {self.key(name): self.of(name, kind.element, depth + 1, owner) for _ in range(count)}
        return self._scalar(name, kind, owner)

    def key(self, name: str) -> str:
        """A key of a map."""
        if self._rng.random() < self._broken / 2:
            return self._rng.choice(("", "A_", "-a", "a/b/c", "x" * 64, "é", "/"))
        return self._rng.choice(_KEYS.get(name, _LABEL_KEYS))

    def _struct(self, kind: StructType, depth: int) -> dict[str, Any]:
        short = kind.name.rpartition(".")[2]
        chosen: dict[str, Any] = {}
        names = [*kind.fields]
        favourite = self._rng.choice(names) if names else ""
        for field in kind.fields.values():
            if short == "ObjectMeta" and field.name not in ("name", "labels", "annotations"):
                continue
            wanted = field.required or field.name == favourite or self._rng.random() < _CHANCE
            if field.required and self._rng.random() < self._broken / 4:
                continue
            if wanted and (depth < _DEPTH_MAX or field.required or not isinstance(field.type, StructType | ListOf)):
                chosen[field.name] = self.of(field.name, field.type, depth + 1, short)
            if depth > 3 * _DEPTH_MAX:
                break
        return chosen

    def _scalar(self, name: str, kind: Scalar, owner: str) -> Any:
        if self._own_groups and name in _OWN_RULE:
            return _OWN_RULE[name]
        if self._rng.random() < self._broken:
            odd = _WRONG if self._rng.random() < 0.1 else _BAD
            return self._rng.choice(odd.get(kind, _BAD[kind]))
        if name == "type" and kind is Scalar.STRING:
            words = next((words for part, words in _TYPES.items() if part in owner), ("a", "Ready"))
            return self._rng.choice(words)
        if kind is Scalar.STRING and _WORDS.get(name):
            return self._rng.choice(_WORDS[name])
        return self._rng.choice(_GOOD[kind])
