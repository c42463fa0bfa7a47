"""From a request body to a checked document of the right kind."""

from __future__ import annotations

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.errors import BadRequestError, UnsupportedMediaTypeError
from dray.api.parse import ParseError, parse_json, parse_yaml
from dray.api.protobuf import ProtobufError, decode_object
from dray.api.raw_numbers import keep_raw_numbers
from dray.api.schema.load import kind_type
from dray.api.strict import DecodeError, check_fields
from dray.api.strict_order import as_warnings, by_levels, in_document_order
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.negotiation import MEDIA_TYPES, Media
from dray.lib import processor_time


def media_type(content_type: str) -> str:
    """The media type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def decode_body(
    body: bytes | Document | None, content_type: str, kind: str, *, protobuf: bool = True
) -> tuple[Document, list[str]]:
    """Parse a body into a document and the duplicate fields it had; a document passes as it is."""
    if isinstance(body, dict):
        return body, []
    processor_time.check()
    media = media_type(content_type) or Media.JSON.value
    raw = body or b""
    if media == Media.PROTOBUF and protobuf:
        return _decode_protobuf(raw, kind), []
    if media not in (Media.JSON, Media.YAML):
        raise UnsupportedMediaTypeError(MEDIA_TYPES if protobuf else MEDIA_TYPES[:2])
    try:
        value, duplicates = parse_yaml(raw) if media == Media.YAML else parse_json(raw)
    except ParseError as error:
        text = raw[:512].decode(errors="replace") or "<empty>"
        raise BadRequestError(
            f"the object provided is unrecognized (must be of type {kind}): "
            f"couldn't get version/kind; json parse error: {error} ({text})"
        ) from error
    if not isinstance(value, dict):
        raise BadRequestError(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json "
            f"parse error: json: cannot unmarshal {_json_type(value)} into Go value of type struct "
            '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        )
    return value, list(duplicates)


def _decode_protobuf(raw: bytes, kind: str) -> Document:
    try:
        return decode_object(raw)[1]
    except ProtobufError as error:
        raise BadRequestError(f"the object provided is unrecognized (must be of type {kind}): {error}") from error


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "string"


def check_kind(document: Document, endpoint: Endpoint) -> None:
    """The document must be of the endpoint's kind and version; both may be left out."""
    kind, api_version = document.get("kind") or "", document.get("apiVersion") or ""
    if not isinstance(kind, str) or not isinstance(api_version, str):
        raise _untyped(document, endpoint.gvk.kind)
    if kind and kind != endpoint.gvk.kind:
        version = GroupVersion.parse(api_version).version
        raise BadRequestError(
            f'{kind} in version "{version}" cannot be handled as a {endpoint.gvk.kind}: '
            f"converting ({version}.{kind}) to ({_internal(endpoint)}.{endpoint.gvk.kind}): unknown conversion"
        )
    if api_version and api_version != endpoint.api_version:
        raise BadRequestError(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({endpoint.api_version})"
        )
    document["kind"], document["apiVersion"] = endpoint.gvk.kind, endpoint.api_version


def _untyped(document: Document, kind: str) -> BadRequestError:
    field = next(field for field in ("apiVersion", "kind") if not isinstance(document.get(field) or "", str))
    return BadRequestError(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: "
        f"json: cannot unmarshal {_json_type(document[field])} into Go struct field .{field} of type string"
    )


def _internal(endpoint: Endpoint) -> str:
    return endpoint.definition.group.partition(".")[0] or "core"


def _refusal(gvk: GroupVersionKind) -> str:
    return f'{gvk.kind} in version "{gvk.version}" cannot be handled as a {gvk.kind}: '


def decode_message(body: bytes | Document | None, content_type: str, gvk: GroupVersionKind) -> Document:
    """The whole way from a body to a document of a kind without an endpoint, such as Binding; unknown fields go."""
    document, _ = decode_body(body, content_type, gvk.kind)
    try:
        normalize_message(document, gvk)
    except DecodeError as error:
        raise BadRequestError(f"{_refusal(gvk)}{error}") from error
    return document


def normalize_message(document: Document, gvk: GroupVersionKind) -> None:
    """Bring an object of a kind without an endpoint into normal form, in place; raises `DecodeError`."""
    struct = kind_type(gvk)
    if struct is not None:
        check_fields(document, struct)


def decode_object_body(
    body: bytes | Document | None, content_type: str, endpoint: Endpoint, validation: str, warnings: list[str]
) -> Document:
    """The whole way from a body to a document of the endpoint's kind with known fields only.

    Unknown fields are dropped, and reported as `fieldValidation` asks; a field of the wrong type is a bad request.
    """
    document, duplicates = decode_body(body, content_type, endpoint.gvk.kind, protobuf=endpoint.has_protobuf)
    check_kind(document, endpoint)
    try:
        processor_time.check()
        unknown = endpoint.normalize(document)
        processor_time.check()
    except DecodeError as error:
        raise BadRequestError(f"{_refusal(endpoint.gvk)}{error}") from error
    if isinstance(body, bytes) and not endpoint.custom and media_type(content_type) in ("", Media.JSON):
        keep_raw_numbers(document, body, endpoint.struct)
    if validation == "Ignore" or not (unknown or duplicates):
        return document
    if endpoint.custom:
        errors = duplicates + unknown
    elif media_type(content_type) == Media.YAML:
        errors = duplicates + by_levels(unknown)
    else:
        errors = in_document_order(body, unknown) if duplicates and isinstance(body, bytes) else unknown
    if validation == "Strict":
        raise BadRequestError(f"{_refusal(endpoint.gvk)}strict decoding error: {', '.join(errors)}")
    warnings.extend(as_warnings(errors))
    return document
