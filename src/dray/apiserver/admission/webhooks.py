"""The webhooks of a cluster, by what is written. Changed only by `observe`."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.apiserver.admission.conditions import CompiledConditions
from dray.apiserver.admission.match_cache import MatchCache
from dray.apiserver.admission.matching import EXEMPT_GROUP, Equivalents, MatchResources
from dray.apiserver.admission.webhook_review import review_version
from dray.cel.admission import Environment

MUTATING: Final = GroupResource(EXEMPT_GROUP, "mutatingwebhookconfigurations")
VALIDATING: Final = GroupResource(EXEMPT_GROUP, "validatingwebhookconfigurations")
_TIMEOUT_SECONDS: Final = 10
_NO_SIDE_EFFECTS: Final = ("None", "NoneOnDryRun")
_HTTPS_PORT: Final = 443


class WebhookTarget(msgspec.Struct, frozen=True):
    """Where a webhook is called: a URL, or a path of a Service."""

    url: str
    service: str
    namespace: str
    port: int
    path: str
    # PEM; empty for the authorities of the system.
    ca_bundle: str

    @classmethod
    def of(cls, config: Document) -> WebhookTarget:
        """Return the target of a client configuration."""
        service = config.get("service") or {}
        return cls(
            config.get("url") or "",
            service.get("name") or "",
            service.get("namespace") or "",
            service.get("port") or _HTTPS_PORT,
            service.get("path") or "",
            config.get("caBundle") or "",
        )


class Webhook:
    """One webhook of a configuration."""

    def __init__(self, configuration: str, document: Document) -> None:
        self.configuration: Final = configuration
        self.name: Final[str] = document.get("name") or ""
        self.match: Final = MatchResources(document, rules=document.get("rules") or ())
        self.target: Final = WebhookTarget.of(document.get("clientConfig") or {})
        self.fails_closed: Final = document.get("failurePolicy") != "Ignore"
        self.timeout_seconds: Final[int] = document.get("timeoutSeconds") or _TIMEOUT_SECONDS
        self.supports_dry_run: Final = document.get("sideEffects") in _NO_SIDE_EFFECTS
        self.is_reinvoked: Final = document.get("reinvocationPolicy") == "IfNeeded"
        self.version: Final = review_version(document.get("admissionReviewVersions") or [])
        self._conditions: Final = document.get("matchConditions") or ()
        self._compiled: CompiledConditions | None = None

    @property
    def has_conditions(self) -> bool:
        """Return whether the webhook has match conditions."""
        return bool(self._conditions)

    def conditions(self) -> CompiledConditions:
        """Return the match conditions, compiled when they are first needed; raises `CELError`."""
        if self._compiled is None:
            self._compiled = CompiledConditions(self._conditions, Environment())
        return self._compiled


class WebhookIndex:
    """The webhooks of one kind of configuration, by configuration and in their order."""

    def __init__(self, resource: GroupResource, equivalents: Equivalents) -> None:
        self._resource = resource
        self._configurations: dict[str, tuple[Webhook, ...]] = {}
        self.matches: Final = MatchCache[Webhook](equivalents, lambda webhook: webhook.match)

    def observe(self, resource: GroupResource, name: str, document: Document | None) -> None:
        """Process the newest state of a configuration; None if it was deleted."""
        if resource != self._resource:
            return
        self._configurations.pop(name, None)
        if document is not None:
            self._configurations[name] = tuple(Webhook(name, item) for item in document.get("webhooks") or ())
        self.matches.replace([item for key in sorted(self._configurations) for item in self._configurations[key]])
