"""ConversionReviews: what a conversion webhook is sent, and what its answer means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from dray.api.document import Document, GroupVersion, copy_document
from dray.api.field_errors import Path
from dray.api.validation.meta_v1 import validate_annotations, validate_labels

_GROUP: Final = "apiextensions.k8s.io"
_KIND: Final = "ConversionReview"
# kube-apiserver sends the first version of the list that it knows.
_VERSIONS: Final = ("v1", "v1beta1")
# What a webhook may change of the metadata.
_CONVERTED_METADATA: Final = ("labels", "annotations")
_KEPT_METADATA: Final = ("name", "namespace", "uid")
_SHOWN: Final = {"name": "name", "namespace": "namespace", "uid": "UID"}


class InvalidReviewError(Exception):
    """An answer that is no conversion of the objects; `failure` is its type in kube-apiserver's metrics."""

    def __init__(self, failure: str, text: str) -> None:
        super().__init__(text)
        self.failure = f"conversion_webhook_{failure}_failure"


def review_version(versions: Sequence[str]) -> str:
    """Return the version of the review that a webhook gets; empty if it accepts none."""
    return next((version for version in versions if version in _VERSIONS), "")


def review_body(uid: str, api_version: str, objects: Sequence[Document], version: str) -> bytes:
    """Return the body of a request for the objects in another version."""
    request = {"uid": uid, "desiredAPIVersion": api_version, "objects": objects}
    return orjson.dumps({"kind": _KIND, "apiVersion": f"{_GROUP}/{version}", "request": request})


def parse_review(body: bytes, uid: str, api_version: str, objects: Sequence[Document], version: str) -> list[Document]:
    """Return the converted objects of an answer; raises `InvalidReviewError` with Kubernetes' text."""
    response = _response(body, uid, version)
    result = response.get("result")
    status = result if isinstance(result, dict) else {}
    if status.get("status") != "Success":
        text = status.get("message") or f"response.result.status was '{status.get('status', '')}', not 'Success'"
        raise InvalidReviewError("malformed_response", f" failed: {text}")
    converted = response.get("convertedObjects") or []
    if not isinstance(converted, list) or len(converted) != len(objects):
        count = len(converted) if isinstance(converted, list) else 0
        raise InvalidReviewError("partial_response", f" returned {count} objects, expected {len(objects)}")
    pairs = zip(converted, objects, strict=True)
    return [_accepted(new, old, api_version, index) for index, (new, old) in enumerate(pairs)]


def _response(body: bytes, uid: str, version: str) -> Document:
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = f"couldn't get version/kind; json parse error: {error}"
        raise InvalidReviewError("malformed_response", f" failed: {text}") from None
    if not isinstance(review, dict):
        raise InvalidReviewError("malformed_response", " failed: the answer is not an object")
    given = (review.get("apiVersion") or "", review.get("kind") or "")
    # Servers of v1beta1 need not say what they answer with.
    if version == "v1" and given != (f"{_GROUP}/v1", _KIND):
        text = f"expected webhook response of {_GROUP}/v1, Kind={_KIND}, got {given[0]}, Kind={given[1]}"
        raise InvalidReviewError("malformed_response", f" failed: {text}")
    response = review.get("response")
    if not isinstance(response, dict):
        raise InvalidReviewError("malformed_response", " failed: no response provided")
    if version == "v1" and response.get("uid") != uid:
        text = f'expected response.uid="{uid}", got "{response.get("uid", "")}"'
        raise InvalidReviewError("malformed_response", f" failed: {text}")
    return response


def _accepted(new: Any, old: Document, api_version: str, index: int) -> Document:
    """Return a converted object with the metadata that it had; a webhook may only change labels and annotations."""

    def invalid(text: str, what: str = "converted object") -> InvalidReviewError:
        place = f"returned invalid {what} at index {index}: {text}"
        return InvalidReviewError("invalid_converted_object", f" {place}")

    if not isinstance(new, dict):
        raise invalid("Object 'Kind' is missing")
    if new.get("apiVersion") != api_version:
        text = f"invalid groupVersion (expected {api_version}, received {new.get('apiVersion') or ''})"
        raise invalid(text)
    if new.get("kind") != old["kind"]:
        raise invalid(f"invalid kind (expected {old['kind']}, received {new.get('kind') or ''})")
    metadata = new.get("metadata")
    if not isinstance(metadata, dict):
        text = "missing metadata in converted object" if metadata is None else "invalid metadata in converted object"
        raise invalid(text, "metadata in object")
    before: Document = old["metadata"]
    for name in _KEPT_METADATA:
        if (metadata.get(name) or "") != (before.get(name) or ""):
            shown = _SHOWN[name]
            raise invalid(f"must have the same {shown}: {before.get(name) or ''} != {metadata.get(name) or ''}")
    kept = copy_document(before)
    for name in _CONVERTED_METADATA:
        if problem := _restore(kept, metadata, name):
            raise invalid(problem, "metadata in object")
    first = {"kind": old["kind"], "apiVersion": api_version, "metadata": kept}
    # The left side sets the order, the right side the values.
    return first | new | first


def _restore(metadata: Document, given: Document, name: str) -> str:
    """Take over the labels or annotations of a converted object; return why they are refused, or the empty text."""
    values = given.get(name)
    if values is None:
        metadata.pop(name, None)
        return ""
    if not isinstance(values, dict):
        return f"invalid metadata.{name} in converted object"
    for key, value in values.items():
        if not isinstance(value, str):
            return f"metadata.{name}[{key}] must be a string in converted object"
    if values != (metadata.get(name) or {}):
        check = validate_labels if name == "labels" else validate_annotations
        if errors := check(values, Path("metadata").child(name)):
            return "; ".join(str(error) for error in errors)
    metadata[name] = values
    return ""


def shown_kind(document: Document) -> str:
    """Return the kind of an object as errors show it."""
    place = GroupVersion.parse(document["apiVersion"])
    return f"{place.api_version}, Kind={document['kind']}"
