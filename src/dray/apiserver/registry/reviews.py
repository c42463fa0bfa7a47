"""The kinds that are questions: they can be created, are answered at once, and are never stored."""

from __future__ import annotations

from typing import Final

from dray.apiserver.registry.strategy import ResourceDefinition, Strategy

_AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION: Final = "authorization.k8s.io"


def _review(group: str, kind: str, *, namespaced: bool = False) -> ResourceDefinition:
    return ResourceDefinition(
        group=group,
        resource=f"{kind.lower()}s",
        singular=kind.lower(),
        kind=kind,
        namespaced=namespaced,
        versions=("v1",),
        storage_version="v1",
        strategy=Strategy(),
        verbs=("create",),
    )


REVIEWS: Final = (
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHORIZATION, "SubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
    _review(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True),
)
BINDINGS: Final = _review("", "Binding", namespaced=True)
DEFINITIONS: Final = (*REVIEWS, BINDINGS)
