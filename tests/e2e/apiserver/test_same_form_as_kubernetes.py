"""Objects with nulls and other empty values are accepted, stored and owned as by a real kube-apiserver.

Needs `KUBE_APISERVER`, the path of a kube-apiserver.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest

from dray.api.document import Document
from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.kube_apiserver import needs_kube_apiserver, running_kube_apiserver
from tests.objects_of_kinds import Emptiness, endpoint_of, one_of_each_kind
from tests.servers import running_server

pytestmark = needs_kube_apiserver

APPLY: Final = "application/apply-patch+yaml"
CHANCES: Final = (0.1, 0.3, 1.0)
NOT_COMPARED: Final = {
    "cdi.k8s.io/v1alpha1/resourceclaims": "Kubernetes has no such kind",
    "cdi.k8s.io/v1alpha1/resourceclasses": "Kubernetes has no such kind",
    "resource.k8s.io/v1beta2/devicetaintrules": "not served by default",
    "resource.k8s.io/v1alpha3/resourcepoolstatusrequests": "not served by default",
    "scheduling.k8s.io/v1beta1/podgroups": "not served by default",
    "scheduling.k8s.io/v1beta1/workloads": "not served by default",
    "apiextensions.k8s.io/v1/customresourcedefinitions": "others write to it at once, and its name cannot vary",
    "networking.k8s.io/v1/ipaddresses": "its name cannot vary",
    "certificates.k8s.io/v1/certificatesigningrequests": "Kubernetes records no owner of what the server replaces",
}
KINDS: Final = {name: document for name, document in one_of_each_kind().items() if name not in NOT_COMPARED}
MANAGERS: Final = frozenset({"creator Update", "applier Apply", "other Apply"})
NUMBERS: Final = itertools.count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, Caller]]:
    folder = tmp_path_factory.mktemp("servers")
    flags = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
    with (
        running_kube_apiserver(folder / "real", *flags) as real,
        running_server(folder / "ours", *flags, command="apiserver") as ours,
        calling(real) as to_real,
        calling(ours) as to_ours,
    ):
        yield to_real, to_ours


class Writer:
    """Brings an object into one server in several ways."""

    def __init__(self, caller: Caller, document: Document) -> None:
        self._caller = caller
        definition, version = endpoint_of(document).definition, endpoint_of(document).version
        root = f"/apis/{definition.group}/{version}" if definition.group else f"/api/{version}"
        place = "/namespaces/default" if definition.namespaced else ""
        self._collection = f"{root}{place}/{definition.resource}"
        self._object = f"{self._collection}/{document['metadata']['name']}"

    def create(self, _base: Document, document: Document) -> Answer:
        return self._caller.call("POST", f"{self._collection}?fieldManager=creator", document)

    def apply(self, _base: Document, document: Document) -> Answer:
        query = "fieldManager=applier&force=true"
        return self._caller.call("PATCH", f"{self._object}?{query}", document, content_type=APPLY)

    def create_and_apply(self, base: Document, document: Document) -> Answer:
        self.create(base, base)
        return self.apply(base, document)

    def apply_twice(self, base: Document, document: Document) -> Answer:
        self.apply(base, document)
        return self.apply(base, document)

    def apply_less(self, base: Document, document: Document) -> Answer:
        self.apply(base, document)
        return self.apply(base, base)

    def apply_by_two(self, base: Document, document: Document) -> Answer:
        self.apply(base, document)
        return self._caller.call("PATCH", f"{self._object}?fieldManager=other", document, content_type=APPLY)

    def delete(self) -> None:
        self._caller.call("DELETE", f"{self._object}?gracePeriodSeconds=0")


Way: TypeAlias = Callable[[Writer, Document, Document], Answer]
WAYS: Final[tuple[Way, ...]] = (
    Writer.create,
    Writer.apply,
    Writer.create_and_apply,
    Writer.apply_twice,
    Writer.apply_less,
    Writer.apply_by_two,
)


class RefusedError(Exception):
    """A write that the server refuses."""


def outcome(server: Caller, way: Way, base: Document, document: Document) -> tuple[Document, dict[str, set[str]]]:
    """What a write makes of an object, without what every server chooses by itself, and who owns what."""
    name = f"one{next(NUMBERS)}"
    base, document = [each | {"metadata": each["metadata"] | {"name": name}} for each in (base, document)]
    writer = Writer(server, base)
    answer = way(writer, base, document)
    writer.delete()
    found = answer.json()
    if found["kind"] == "Status":
        raise RefusedError(answer.status, found["message"].replace(name, "one"))
    found = json.loads(answer.body.replace(found["metadata"]["uid"].encode(), b"UID").replace(name.encode(), b"one"))
    entries = found["metadata"].get("managedFields", ())
    owned = {f"{entry['manager']} {entry['operation']}": set(paths(entry["fieldsV1"])) for entry in entries}
    return {part: found[part] for part in base if part != "metadata"}, owned


def paths(tree: Document, above: str = "") -> Iterator[str]:
    for element, below in tree.items():
        if not below:
            yield above if element == "." else f"{above}/{element}"
        yield from paths(below, f"{above}/{element}")


def effect(server: Caller, way: Way, base: Document, document: Document) -> Any:
    """What the values that say nothing change: nothing but who owns them, and conflicts about them."""
    try:
        expected, owned_before = outcome(server, way, base, base)
        found, owned = outcome(server, way, base, document)
    except RefusedError as refused:
        return refused.args
    assert found == expected
    none: set[str] = set()
    return {
        manager: (owned[manager] - owned_before.get(manager, none), owned_before.get(manager, none) - owned[manager])
        for manager in sorted(MANAGERS & owned.keys())
    }


@pytest.mark.parametrize("resource", KINDS)
def test_values_that_say_nothing_have_the_same_owners_as_in_kubernetes(
    servers: tuple[Caller, Caller], resource: str, record_property: Callable[[str, object], None]
) -> None:
    rng, base, compared = random.Random(resource), KINDS[resource], 0
    struct = endpoint_of(base).struct
    for chance, way in itertools.product(CHANCES, WAYS):
        document = Emptiness(rng, chance).noisy(base, struct)
        expected, found = (effect(server, way, base, document) for server in servers)
        if isinstance(expected, tuple) and expected[0] in (403, 422):
            # Some rules of Kubernetes tell an empty list or map from none.
            continue
        assert found == expected, f"{way.__name__} of {json.dumps(document)}"
        compared += 1
    record_property("writes compared", compared)
