"""The policies and webhooks that users configure: their indexes, and the plugins that apply them."""

from __future__ import annotations

import random
from typing import Final

from dray.api.document import Document, GroupResource
from dray.apiserver.admission.matching import Equivalents
from dray.apiserver.admission.mutating_webhooks import MutatingAdmissionWebhook
from dray.apiserver.admission.param_access import ParamAccess
from dray.apiserver.admission.plugin import AdmissionPlugin
from dray.apiserver.admission.policy_index import AdmissionObserver, PolicyIndex
from dray.apiserver.admission.policy_metrics import PolicyMetrics
from dray.apiserver.admission.policy_params import PolicyParams
from dray.apiserver.admission.policy_status import PolicyStatusController
from dray.apiserver.admission.validating_admission_policy import Authorize, ValidatingAdmissionPolicy
from dray.apiserver.admission.validating_webhooks import ValidatingAdmissionWebhook
from dray.apiserver.admission.webhook_caller import WebhookCaller, WebhookParts
from dray.apiserver.admission.webhook_client import WebhookClient
from dray.apiserver.admission.webhook_metrics import WebhookMetrics
from dray.apiserver.admission.webhooks import MUTATING, VALIDATING, WebhookIndex
from dray.apiserver.catalog import Catalog
from dray.apiserver.object_lookup import ObjectLookup
from dray.apiserver.service_resolver import ServiceResolver
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.store.interface import Store


class ConfiguredAdmission:
    """Observes what is configured, and makes the plugins of one server."""

    def __init__(self, catalog: Catalog, store: Store, clock: Clock, random_source: random.Random) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._random = random_source
        self._equivalents = Equivalents(catalog)
        self._policies = PolicyIndex(self._equivalents)
        self._mutating = WebhookIndex(MUTATING, self._equivalents)
        self._validating = WebhookIndex(VALIDATING, self._equivalents)
        self.policy_status: Final = PolicyStatusController(catalog)
        self._observer = AdmissionObserver(
            self._policies.observe, self._mutating.observe, self._validating.observe, self.policy_status.observe
        )
        self.client: Final = WebhookClient(ServiceResolver(store, random_source))

    def observe(self, resource: GroupResource, name: str, document: Document | None, revision: int) -> None:
        """Process the state that a policy, binding or configuration has since the revision; None if it was deleted."""
        self._observer.observe(resource, name, document, revision)

    def plugins(self, objects: ObjectLookup, authorize: Authorize, metrics: Metrics) -> tuple[AdmissionPlugin, ...]:
        """Return the plugins."""
        parts = WebhookParts(
            client=self.client,
            equivalents=self._equivalents,
            objects=objects,
            authorize=authorize,
            metrics=WebhookMetrics(metrics),
            clock=self._clock,
            random=self._random,
        )
        return (
            MutatingAdmissionWebhook(self._mutating, WebhookCaller(parts, "admit"), self._clock),
            ValidatingAdmissionPolicy(
                self._policies,
                self._equivalents,
                objects,
                PolicyParams(self._catalog, self._store),
                authorize,
                PolicyMetrics(metrics),
            ),
            ValidatingAdmissionWebhook(self._validating, WebhookCaller(parts, "validating")),
        )

    def param_access(self, authorize: Authorize) -> ParamAccess:
        """Return the check of who may configure parameters, which cannot be disabled."""
        return ParamAccess(self._policies, PolicyParams(self._catalog, self._store), authorize)

    async def close(self) -> None:
        """Close the connections to webhooks."""
        await self.client.close()
