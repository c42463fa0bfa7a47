"""Paths that are not resources: discovery, OpenAPI, version, health, metrics and the keys of tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, MethodNotAllowedError, NotAcceptableError, PathNotFoundError
from dray.api.features import KUBERNETES_RELEASE, min_compatibility
from dray.api.gate_table import CURRENT, Release
from dray.apiserver import discovery
from dray.apiserver.authentication.service_accounts import ServiceAccountTokens
from dray.apiserver.call import Call, DocumentResult, Result, TextResult
from dray.apiserver.catalog import Catalog
from dray.apiserver.encoding import CONTENT_TYPES, dump
from dray.apiserver.healthz import HealthChecks
from dray.apiserver.negotiation import MEDIA_TYPES, Media, Representation, UnavailableRepresentationError, negotiate
from dray.apiserver.openapi import gnostic
from dray.runtime.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE

_INDICATORS: Final = "metrics/slis"
HEALTH_ENDPOINTS: Final = ("healthz", "livez", "readyz")
_AGGREGATED: Final = re.compile(
    r"application/(json|yaml);g=apidiscovery\.k8s\.io;v=(v2|v2beta1);as=APIGroupDiscoveryList", re.IGNORECASE
)


class PageNotFoundError(APIError):
    """The error of unknown paths; the answer is plain text, as in kube-apiserver."""

    code = 404
    reason = "NotFound"
    plain_text = "404 page not found\n"

    def __init__(self) -> None:
        super().__init__("the server could not find the requested resource", details={})


class OpenAPISource(Protocol):
    """The OpenAPI documents of a catalog."""

    def index(self) -> bytes:
        """Return the v3 index."""

    def document(self, path: str) -> tuple[bytes, str] | None:
        """Return the v3 document of a path such as `apis/apps/v1`, and its hash."""

    def v2(self) -> bytes:
        """Return the v2 document."""

    def v2_protobuf(self) -> bytes:
        """Return the v2 document in protobuf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonResourceParts:
    """What the paths outside the resources are served from."""

    catalog: Catalog
    health: HealthChecks
    tokens: ServiceAccountTokens
    openapi: OpenAPISource
    metrics: Callable[[], bytes]
    # Host and port that clients reach the server by.
    address: str
    # The release that the server emulates.
    release: Release = CURRENT


class NonResourceHandler:
    """Serves everything outside the resources."""

    def __init__(self, parts: NonResourceParts) -> None:
        self._catalog = parts.catalog
        self.health: Final = parts.health
        self._tokens = parts.tokens
        self._openapi = parts.openapi
        self._metrics = parts.metrics
        self._address = parts.address
        self._cached: dict[tuple[str, Media], tuple[int, bytes, str]] = {}
        # Pages of metrics of the components in this process.
        self.component_metrics: Final[dict[str, Callable[[], Awaitable[bytes]]]] = {}
        self._exact: Final[Mapping[str, Callable[[Call], Result]]] = {
            "": self._root,
            "version": lambda _call: DocumentResult(_version(parts.release)),
            "metrics": self._serve_metrics,
            "api": self._api,
            "apis": self._apis,
            "openapi/v2": self._serve_openapi_v2,
            "openapi/v3": lambda call: _hashed(call, self._openapi.index()),
            ".well-known/openid-configuration": lambda _call: DocumentResult(
                self._tokens.discovery_document(f"https://{self._address}")
            ),
            "openid/v1/jwks": self._serve_keys,
        }

    async def serve(self, call: Call) -> Result:
        """Handle a request whose path is not a resource."""
        path = call.info.path.strip("/")
        endpoint, _, check = path.partition("/")
        if endpoint in HEALTH_ENDPOINTS:
            return await self._serve_health(call, endpoint, check)
        if path == _INDICATORS:
            _check_readable(call)
            return TextResult(await self.health.indicators(), METRICS_CONTENT_TYPE)
        if (page := self.component_metrics.get(path)) is not None:
            _check_readable(call)
            return TextResult(await page(), METRICS_CONTENT_TYPE)
        handler = self._exact.get(path) or self._prefixed(path)
        if handler is None:
            raise self.not_found()
        _check_readable(call)
        return handler(call)

    def not_found(self) -> APIError:
        """Return the error of unknown paths."""
        return PageNotFoundError()

    def _prefixed(self, path: str) -> Callable[[Call], Result] | None:
        parts = path.split("/")
        if path.startswith("openapi/v3/"):
            return lambda call: self._serve_openapi(call, path.removeprefix("openapi/v3/"))
        match parts:
            case ["api", version]:
                return self._resource_list("", version)
            case ["apis", group]:
                return self._group(group)
            case ["apis", group, version]:
                return self._resource_list(group, version)
        return None

    def _root(self, _call: Call) -> Result:
        paths = {f"/{path}" for path in (*self._exact, *self.component_metrics, *HEALTH_ENDPOINTS, _INDICATORS) if path}
        paths.update(self.health.paths())
        for group, versions in discovery.group_versions(self._catalog.endpoints()).items():
            base = f"/apis/{group}" if group else "/api"
            paths.add(base)
            paths.update(f"{base}/{version}" for version in versions)
        return DocumentResult({"paths": sorted(paths)})

    def _serve_metrics(self, _call: Call) -> Result:
        return TextResult(self._metrics(), METRICS_CONTENT_TYPE)

    async def _serve_health(self, call: Call, endpoint: str, check: str) -> Result:
        _check_readable(call)
        if not check:
            return await self.health.report(endpoint, call.query)
        result = await self.health.report_one(endpoint, check)
        if result is None:
            raise self.not_found()
        return result

    def _serve_keys(self, call: Call) -> Result:
        accept = call.accept
        if accept and not any(item in accept for item in ("application/jwk-set+json", "*/*")):
            raise UnavailableRepresentationError(["application/jwk-set+json"])
        return TextResult(orjson.dumps(self._tokens.public_keys()), "application/jwk-set+json")

    # --- discovery ---

    def _api(self, call: Call) -> Result:
        return self._aggregated(call, core=True) or _discovered(call, discovery.legacy_api(self._address))

    def _apis(self, call: Call) -> Result:
        groups = discovery.api_group_list
        return self._aggregated(call, core=False) or _discovered(call, groups(self._catalog.endpoints()))

    def _aggregated(self, call: Call, *, core: bool) -> Result | None:
        wanted = _AGGREGATED.search(call.accept.replace(" ", ""))
        if wanted is None:
            return None
        if wanted[2] != "v2":
            # The beta form is not served any more; a client that accepts nothing else gets an error.
            rest = [item for item in call.accept.split(",") if "apidiscovery" not in item]
            if rest:
                return None
            raise NotAcceptableError(MEDIA_TYPES)
        media = Media(f"application/{wanted[1].lower()}")
        body, etag = self._cache(
            "core" if core else "groups",
            media,
            lambda: discovery.aggregated(self._catalog.endpoints(), core=core),
        )
        return _conditional(call, body, etag, f"{media};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")

    def _cache(self, name: str, media: Media, make: Callable[[], Document]) -> tuple[bytes, str]:
        """Return a document that changes only with the catalog, and its hash."""
        generation = self._catalog.generation
        found = self._cached.get((name, media))
        if found is None or found[0] != generation:
            body = dump(make(), Representation(media))
            found = self._cached[(name, media)] = (generation, body, _hash(body))
        return found[1], found[2]

    def _group(self, group: str) -> Callable[[Call], Result] | None:
        versions = discovery.group_versions(self._catalog.endpoints()).get(group)
        if not versions or not group:
            return None
        return lambda call: _discovered(call, discovery.api_group(group, versions))

    def _resource_list(self, group: str, version: str) -> Callable[[Call], Result] | None:
        if self._catalog.has_group_version(group, version):
            group_version = GroupVersion(group, version)
            endpoints = self._catalog.endpoints
            return lambda call: _discovered(call, discovery.api_resource_list(group_version, endpoints()))
        known = discovery.group_versions(self._catalog.endpoints())
        if group in known:
            return _raise_path_not_found
        return None

    # --- OpenAPI ---

    def _serve_openapi(self, call: Call, path: str) -> Result:
        found = self._openapi.document(path)
        if found is None:
            raise self.not_found()
        body, digest = found
        result = _conditional(call, body, digest, "application/json")
        if call.query.get("hash"):
            expires = ("Cache-Control", "public, immutable")
            result.headers = (*(item for item in result.headers if item[0] != "Cache-Control"), expires)
        return result

    def _serve_openapi_v2(self, call: Call) -> Result:
        if any(media in call.accept for media in gnostic.MEDIA_TYPES):
            return _hashed(call, self._openapi.v2_protobuf(), gnostic.MEDIA_TYPE)
        return _hashed(call, self._openapi.v2())


def _version(emulated: Release) -> Document:
    compatible = min_compatibility(emulated)
    return {
        "major": str(CURRENT.major),
        "minor": str(CURRENT.minor),
        "emulationMajor": str(emulated.major),
        "emulationMinor": str(emulated.minor),
        "minCompatibilityMajor": str(compatible.major),
        "minCompatibilityMinor": str(compatible.minor),
        "gitVersion": KUBERNETES_RELEASE,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "python",
        "platform": "linux/amd64",
    }


def _discovered(call: Call, document: Document) -> Result:
    """Return a document of discovery as JSON or YAML, whichever the client prefers."""
    if negotiate(call.accept, tables=False).media is not Media.YAML:
        return DocumentResult(document)
    return TextResult(dump(document, Representation(Media.YAML)), CONTENT_TYPES[Media.YAML])


def _check_readable(call: Call) -> None:
    if call.info.method not in ("GET", "HEAD"):
        raise MethodNotAllowedError


def _raise_path_not_found(_call: Call) -> Result:
    raise PathNotFoundError


def _hash(body: bytes) -> str:
    return hashlib.sha512(body).hexdigest().upper()


def _hashed(call: Call, body: bytes, content_type: str = "application/json") -> TextResult:
    return _conditional(call, body, _hash(body), content_type)


def _conditional(call: Call, body: bytes, etag: str, content_type: str) -> TextResult:
    """Return the document, or 304 if the client has it."""
    quoted = f'"{etag}"'
    headers = (("ETag", quoted), ("Vary", "Accept"), ("Cache-Control", "public"))
    if call.if_none_match == quoted:
        return TextResult(b"", content_type, 304, headers)
    return TextResult(body, content_type, 200, headers)
