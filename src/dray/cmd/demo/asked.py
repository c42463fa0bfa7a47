"""Who asks for what, read from the manifests that are applied. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dray.api.document import Document
from dray.cmd.demo.scene import Fact

_ATTRIBUTE = re.compile(r'device\.attributes\["[^"]*"\]\.')


def asked(documents: Sequence[Document]) -> tuple[Fact, ...]:
    """One fact for each Pod, or for the Pods of a Deployment."""
    return tuple(Fact("asked", f"{who}: {'; '.join(_wishes(spec, documents))}") for who, spec in _askers(documents))


def _askers(documents: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            yield f"pod {name}", document["spec"]
        elif document["kind"] == "Deployment":
            count = document["spec"]["replicas"]
            yield f"deployment {name}, {count} Pods, each", document["spec"]["template"]["spec"]


def _wishes(spec: Document, documents: Sequence[Document]) -> Iterator[str]:
    for entry in spec.get("resourceClaims", ()):
        if "template" in entry:
            yield _classic(entry["template"]["spec"])
            continue
        template = entry.get("resourceClaimTemplateName", "")
        name = template or entry["resourceClaimName"]
        kind = "ResourceClaimTemplate" if template else "ResourceClaim"
        found = next(item for item in documents if (item["kind"], item["metadata"]["name"]) == (kind, name))
        devices = (found["spec"]["spec"] if template else found["spec"])["devices"]
        yield from (_request(request) for request in devices["requests"])
    for container in spec["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        yield from (f"{name}: {amount}" for name, amount in limits.items() if "/" in name)


def _classic(claim: Document) -> str:
    parameters = ", ".join(f"{name} {value}" for name, value in claim.get("parameters", {}).items())
    return f"1 {claim['resourceClassName']} with {parameters}"


def _request(request: Document) -> str:
    if "exactly" in request:
        return _wish(request["exactly"])
    return ", else ".join(f"{_wish(item)}" for item in request["firstAvailable"])


def _wish(wish: Document) -> str:
    conditions = [_ATTRIBUTE.sub("", item["cel"]["expression"]) for item in wish.get("selectors", ())]
    where = f" where {' && '.join(conditions)}" if conditions else ""
    return f"{wish.get('count', 1)} {wish['deviceClassName']}{where}"
