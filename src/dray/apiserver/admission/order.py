"""The admission plugins, in the order in which they run."""

from __future__ import annotations

from typing import Final

# kube-apiserver's order. ResourceQuota charges a quota and therefore must be the last to refuse.
PLUGIN_ORDER: Final = (
    "NamespaceLifecycle",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "PodSecurity",
    "Priority",
    "PodGroupProtection",
    "DefaultTolerationSeconds",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "RuntimeClass",
    "CertificateApproval",
    "CertificateSigning",
    "PodTopologyLabels",
    "NodeDeclaredFeatureValidator",
    "PodResizeValidator",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ResourceQuota",
)
