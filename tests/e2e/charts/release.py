"""Installs a release as helm 4 does: by server-side apply of the field manager `helm`, with hooks."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from dray.api.document import Document
from tests.e2e.apiserver.calls import Answer, Caller

APPLY: Final = "application/apply-patch+yaml"
HOOK: Final = "helm.sh/hook"
SECONDS_MAX: Final = 60.0
# What others need comes first, and is removed last.
ORDER: Final = (
    "Namespace",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Pod",
    "Deployment",
    "StatefulSet",
    "Job",
    "APIService",
)


def _place(document: Document) -> int:
    return ORDER.index(document["kind"]) if document["kind"] in ORDER else len(ORDER)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass(slots=True)
class Release:
    """A release in one namespace."""

    caller: Caller
    namespace: str
    objects: list[Document] = field(default_factory=list)
    _resources: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)

    def install(self, documents: Sequence[Document]) -> None:
        """Install, or upgrade: what the release had and has no longer is deleted."""
        verb = "upgrade" if self.objects else "install"
        plain = sorted((item for item in documents if not _hooks(item)), key=_place)
        self._run_hooks(documents, f"pre-{verb}")
        for document in plain:
            self.apply(document)
        kept = {self.path(document) for document in plain}
        for document in reversed(self.objects):
            if self.path(document) not in kept:
                self.delete(document)
        self.objects = plain
        self._run_hooks(documents, f"post-{verb}")

    def uninstall(self, documents: Iterable[Document]) -> None:
        """Delete everything but the definitions' objects, which go with them."""
        documents = list(documents)
        self._run_hooks(documents, "pre-delete")
        for document in reversed(self.objects):
            self.delete(document)
        self._run_hooks(documents, "post-delete")
        for document in self.objects:
            wait(partial(self._is, document, _is_gone))
        self.objects = []

    def apply(self, document: Document) -> None:
        """Apply one object, and wait for a definition to be served."""
        answer = self.caller.call(
            "PATCH", f"{self.path(document)}?fieldManager=helm&force=true", document, content_type=APPLY
        )
        assert answer.status in (200, 201), (document["kind"], answer.body)
        if document["kind"] == "CustomResourceDefinition":
            wait(partial(self._is, document, _is_established))

    def delete(self, document: Document) -> None:
        """Delete one object in the background."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        assert self.caller.call("DELETE", self.path(document), options).status in (200, 202, 404)

    def path(self, document: Document) -> str:
        """The path of an object, by discovery."""
        version, kind = document["apiVersion"], document["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._resources:
            for item in self.caller.call("GET", root).json()["resources"]:
                if "/" not in item["name"]:
                    self._resources[version, item["kind"]] = (item["name"], item["namespaced"])
        plural, namespaced = self._resources[version, kind]
        namespace = document["metadata"].get("namespace", self.namespace)
        place = f"/namespaces/{namespace}" if namespaced else ""
        return f"{root}{place}/{plural}/{urllib.parse.quote(document['metadata']['name'])}"

    def _is(self, document: Document, condition: Callable[[Answer], bool]) -> bool:
        return condition(self.caller.call("GET", self.path(document)))

    def _run_hooks(self, documents: Iterable[Document], event: str) -> None:
        """Create the hooks of an event one after the other; a Job must succeed. What a hook has made is deleted."""
        for document in documents:
            if event not in _hooks(document):
                continue
            self.delete(document)
            wait(partial(self._is, document, _is_gone))
            self.apply(document)
            if document["kind"] == "Job":
                wait(partial(self._is, document, _has_succeeded))
            self.delete(document)


def _hooks(document: Document) -> list[str]:
    annotations = document["metadata"].get("annotations") or {}
    return str(annotations.get(HOOK, "")).split(",") if annotations.get(HOOK) else []


def _is_gone(answer: Answer) -> bool:
    return answer.status == HTTPStatus.NOT_FOUND


def _is_established(answer: Answer) -> bool:
    conditions: list[Any] = (json.loads(answer.body).get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _has_succeeded(answer: Answer) -> bool:
    return bool((json.loads(answer.body).get("status") or {}).get("succeeded"))
