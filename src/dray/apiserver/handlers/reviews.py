"""Reviews of identity and access: kinds that are evaluated and never stored."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.api.timestamps import format_time
from dray.apiserver.authentication.authenticator import Authenticator, user_document
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call, DocumentResult, Result
from dray.apiserver.decoding import decode_object_body
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import parse_write_options
from dray.apiserver.ownership import stamp_create
from dray.lib.clock import Clock

# Returned without managedFields.
_UNSTAMPED: Final = frozenset({"SelfSubjectReview", "SelfSubjectRulesReview"})


class ReviewHandler:
    """Evaluates reviews."""

    def __init__(self, authenticator: Authenticator, authorizer: Authorizer, clock: Clock) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._clock = clock

    def review(self, call: Call, endpoint: Endpoint) -> Result:
        """Evaluate one review."""
        options = parse_write_options(call.query, "CreateOptions")
        document = decode_object_body(call.body, call.content_type, endpoint, options.field_validation, call.warnings)
        metadata: Document = document.get("metadata") or {}
        kind = endpoint.definition.kind
        document["metadata"] = metadata
        if endpoint.definition.namespaced:
            given = metadata.setdefault("namespace", call.info.namespace)
            if given != call.info.namespace:
                raise BadRequestError("namespace on the review and the request must match")
        if kind not in _UNSTAMPED:
            stamp_create(document, endpoint, manager=call.manager, now=self._clock.now())
        answer = getattr(self, f"_answer_{endpoint.definition.singular}")
        result: Document = answer(call, document)
        return DocumentResult(result, 201, endpoint)

    def _answer_tokenreview(self, _call: Call, review: Document) -> Document:
        spec: Document = review.get("spec") or {}
        if not spec.get("token"):
            raise BadRequestError("token is required for TokenReview in authentication")
        return review | {"status": self._authenticator.token_review(spec, self._clock.now())}

    def _answer_selfsubjectreview(self, call: Call, review: Document) -> Document:
        created = format_time(self._clock.now())
        return {
            "kind": review["kind"],
            "apiVersion": review["apiVersion"],
            "metadata": {"creationTimestamp": created},
            "status": {"userInfo": user_document(call.user)},
        }

    def _answer_subjectaccessreview(self, _call: Call, review: Document) -> Document:
        return review | {"status": self._authorizer.subject_access_review(review.get("spec") or {})}

    def _answer_localsubjectaccessreview(self, call: Call, review: Document) -> Document:
        spec: Document = review.get("spec") or {}
        return review | {"status": self._authorizer.local_subject_access_review(spec, call.info.namespace)}

    def _answer_selfsubjectaccessreview(self, call: Call, review: Document) -> Document:
        spec: Document = review.get("spec") or {}
        return review | {"status": self._authorizer.self_subject_access_review(call.user, spec)}

    def _answer_selfsubjectrulesreview(self, call: Call, review: Document) -> Document:
        namespace = str((review.get("spec") or {}).get("namespace") or "")
        status = self._authorizer.self_subject_rules_review(call.user, namespace)
        return {
            "kind": review["kind"],
            "apiVersion": review["apiVersion"],
            "metadata": {},
            "spec": {},
            "status": status,
        }
