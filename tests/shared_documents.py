"""Documents that all who hear of a write share: after a test they must still say what was stored."""

from __future__ import annotations

import orjson

from dray.api.raw_numbers import fragment
from dray.apiserver.document_cache import DocumentCache


def assert_unchanged(documents: DocumentCache) -> None:
    """No document that the server shares was changed by anybody who got it."""
    for known in documents._known.values():
        document = orjson.loads(orjson.dumps(known.document, default=fragment))
        document["metadata"].pop("resourceVersion", None)
        assert document == orjson.loads(known.value)
