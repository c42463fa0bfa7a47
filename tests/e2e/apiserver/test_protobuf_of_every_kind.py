"""Every kind answers every verb to clients that accept protobuf, alone or before JSON, as stock components do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
import pytest

from dray.api.document import Document, GroupVersionKind
from dray.api.protobuf import decode_object, has_protobuf
from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.objects_of_kinds import endpoint_of, one_of_each_kind
from tests.servers import running_server

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
METADATA: Final = f"{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGE: Final = "application/merge-patch+json"
WIDGET: Final = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"}}
KINDS: Final = {**one_of_each_kind(), "example.com/v1/widgets": WIDGET}


def kind_has_protobuf(document: Document) -> bool:
    group, _, version = document["apiVersion"].rpartition("/")
    return document is not WIDGET and has_protobuf(GroupVersionKind(group, version, document["kind"]))


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    flags = (
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--feature-gates=GenericWorkload=true,DRAResourcePoolStatus=true",
    )
    with (
        running_server(tmp_path_factory.mktemp("server"), *flags, command="apiserver") as server,
        calling(server) as found,
    ):
        define_widgets(found)
        yield found


def define_widgets(caller: Caller) -> None:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    definition = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert caller.call("POST", path, definition).status == 201
    # The server answers when the definition is served.
    assert caller.get("/apis/example.com/v1/widgets").status == 200


def path_of(kind: str, document: Document) -> str:
    group, version, resource = kind.split("/")
    root = f"/api/{version}" if group == "core" else f"/apis/{group}/{version}"
    namespaced = document is WIDGET or endpoint_of(document).definition.namespaced
    return f"{root}/namespaces/default/{resource}" if namespaced else f"{root}/{resource}"


def decoded(answer: Answer) -> Document:
    found: Document = (
        decode_object(answer.body)[1] if answer.headers["Content-Type"] == PROTOBUF else orjson.loads(answer.body)
    )
    return found


class Requests:
    """The requests to one kind; every one names its kind if it fails."""

    def __init__(self, caller: Caller, kind: str, document: Document, accept: str) -> None:
        self._caller = caller
        self._path = path_of(kind, document)
        self._document = document
        self._accept = accept
        self._name = document["metadata"]["name"]

    def answers(self) -> Iterator[tuple[str, Answer]]:
        """The answer to each verb; the object is created by the first, and gone after the last."""
        one = f"{self._path}/{self._name}"
        annotated = {"metadata": {"annotations": {"a": "b"}}}
        yield "create", self._call("POST", self._path, self._document)
        # What other components do to the object meanwhile is not what is tested.
        yield "get", self._call("GET", one)
        yield "list", self._call("GET", self._path)
        yield "update", self._call("PUT", one, self._caller.get(one).json())
        yield "patch", self._call("PATCH", one, annotated, content_type=MERGE)
        yield (
            "apply",
            self._call(
                "PATCH",
                f"{one}?fieldManager=m&force=true",
                {key: self._document[key] for key in ("apiVersion", "kind")} | annotated,
                content_type="application/apply-patch+yaml",
            ),
        )
        dry = "dryRun=All"
        yield "dry run of a delete", self._call("DELETE", f"{one}?{dry}")
        selector = f"fieldSelector=metadata.name%3D{self._name}"
        yield "dry run of a deletecollection", self._call("DELETE", f"{self._path}?{selector}&{dry}")
        yield "deletecollection", self._call("DELETE", f"{self._path}?{selector}")
        yield "get of what is gone", self._call("GET", f"{self._path}/there-is-none")

    def _call(self, method: str, path: str, body: Any = None, **options: str) -> Answer:
        return self._caller.call(method, path, body, Accept=self._accept, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_of_a_kind_for_stock_components(caller: Caller, kind: str) -> None:
    document = KINDS[kind]
    media = PROTOBUF if kind_has_protobuf(document) else "application/json"
    # Namespaces are deleted one by one.
    unknown = {"deletecollection", "dry run of a deletecollection"} if kind == "core/v1/namespaces" else set()
    for verb, answer in Requests(caller, kind, document, f"{PROTOBUF},application/json").answers():
        expected = {"create": (201, media), "get of what is gone": (404, PROTOBUF)}.get(verb, (200, media))
        expected = (405, PROTOBUF) if verb in unknown else expected
        assert (answer.status, answer.headers["Content-Type"]) == expected, (verb, answer.body)
        assert decoded(answer)["kind"]


@pytest.mark.parametrize("kind", [kind for kind, document in KINDS.items() if not kind_has_protobuf(document)])
def test_a_kind_without_protobuf_for_clients_of_protobuf_alone(caller: Caller, kind: str) -> None:
    """As kube-apiserver answers for custom resources."""
    document = KINDS[kind]
    accepted = "only the following media types are accepted: application/json, application/yaml"
    for verb, answer in Requests(caller, kind, document, PROTOBUF).answers():
        assert (answer.status, answer.headers["Content-Type"]) == (406, PROTOBUF), verb
        assert decoded(answer)["message"].startswith(accepted)


def frame(caller: Caller, target: str, accept: str) -> bytes:
    """The first frame of a watch in protobuf."""
    with caller.stream(target, Accept=accept) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, f"{PROTOBUF};stream=watch"), answer.read()
        return answer.read(int.from_bytes(answer.read(4), "big"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_of_every_kind_has_protobuf(caller: Caller, kind: str) -> None:
    """The garbage collector and the namespace controller of Kubernetes read all kinds so."""
    document = KINDS[kind]
    path, name = path_of(kind, document), document["metadata"]["name"]
    selector = f"fieldSelector=metadata.name%3D{name}"
    # Some objects wait for a finalizer, or cannot have another name.
    assert caller.call("POST", path, document).status in (201, 409)
    try:
        listing = caller.get(f"{path}?{selector}", Accept=f"{METADATA.replace('Metadata', 'MetadataList', 1)}")
        found = caller.get(f"{path}/{name}", Accept=METADATA)
        assert (listing.status, found.status) == (200, 200), listing.body + found.body
        assert decode_object(listing.body)[1]["items"][0]["metadata"]["name"] == name
        assert decode_object(found.body)[1]["metadata"]["name"] == name
        assert name.encode() in frame(caller, f"{path}?{selector}&watch=true&timeoutSeconds=10", METADATA)
        if kind_has_protobuf(document):
            assert name.encode() in frame(caller, f"{path}?{selector}&watch=true&timeoutSeconds=10", PROTOBUF)
    finally:
        caller.call("DELETE", f"{path}?{selector}")


# They pass on what a node answers, or an upgraded connection.
STREAMS: Final = frozenset({"attach", "exec", "log", "portforward", "proxy"})


def subresources(caller: Caller) -> Iterator[tuple[str, str, list[str]]]:
    """The kind, the subresource and its verbs, of all that discovery lists; the scale of custom resources as well."""
    for kind, document in KINDS.items():
        root = path_of(kind, document).partition("/namespaces/")[0].removesuffix(f"/{kind.split('/')[2]}")
        for item in caller.get(root).json()["resources"]:
            resource, _, subresource = item["name"].partition("/")
            if resource == kind.split("/")[2] and subresource and subresource not in STREAMS:
                yield kind, subresource, item["verbs"]


def test_subresources_answer_as_well(caller: Caller) -> None:
    """Whatever they answer, it is encoded as it was asked for; requests without a body are refused, not failures."""
    asked = 0
    for kind, subresource, verbs in subresources(caller):
        document = KINDS[kind]
        path = f"{path_of(kind, document)}/{document['metadata']['name']}/{subresource}"
        assert caller.call("POST", path_of(kind, document), document).status in (201, 409), kind
        for verb, method, body in (
            ("get", "GET", None),
            ("patch", "PATCH", {}),
            ("update", "PUT", {}),
            ("create", "POST", {}),
        ):
            if verb not in verbs:
                continue
            answer = caller.call(
                method,
                path,
                body,
                content_type=MERGE if verb == "patch" else "application/json",
                Accept=f"{PROTOBUF},application/json",
            )
            assert answer.status < 500, (kind, subresource, verb, answer.body)
            assert decoded(answer)["kind"], (kind, subresource, verb)
            if verb == "get" and kind_has_protobuf(document):
                assert (answer.status, answer.headers["Content-Type"]) == (200, PROTOBUF), (kind, subresource)
            asked += 1
    assert asked > 100


REVIEWS: Final = {
    "authentication.k8s.io/v1/tokenreviews": ("TokenReview", {"token": "x"}),
    "authentication.k8s.io/v1/selfsubjectreviews": ("SelfSubjectReview", {}),
    "authorization.k8s.io/v1/selfsubjectaccessreviews": (
        "SelfSubjectAccessReview",
        {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    ),
    "authorization.k8s.io/v1/subjectaccessreviews": (
        "SubjectAccessReview",
        {"user": "a", "nonResourceAttributes": {"path": "/", "verb": "get"}},
    ),
    "authorization.k8s.io/v1/selfsubjectrulesreviews": ("SelfSubjectRulesReview", {"namespace": "default"}),
}


@pytest.mark.parametrize("review", REVIEWS)
def test_reviews_have_protobuf(caller: Caller, review: str) -> None:
    kind, spec = REVIEWS[review]
    body = {"apiVersion": review.rpartition("/")[0], "kind": kind, "spec": spec}
    answer = caller.call("POST", f"/apis/{review}", body, Accept=PROTOBUF)
    assert (answer.status, answer.headers["Content-Type"]) == (201, PROTOBUF), answer.body
    assert decoded(answer)["kind"] == kind
