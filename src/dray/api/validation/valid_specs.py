"""Specs that were found valid, so that those of Pods from one template are validated once.

A spec is known by the digest of its JSON text. The volume of a Pod's token has a random name: names of its form are the
same to every rule, so the text is taken with another in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import orjson

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.lib.lru import LRUSet

# Templates in use at the same time; a digest takes about a hundred bytes.
COUNT_MAX: Final = 4096
_DIGEST_BYTES: Final = 32
_TOKEN_VOLUME: Final = re.compile("kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}")
# JSON text has no such byte, so that nothing else looks like it.
_ANY_TOKEN_VOLUME: Final = b"\0"


class ValidSpecs:
    """Remembers which specs a rule found valid; the rule must depend on nothing but the spec."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._valid: LRUSet[bytes] = LRUSet(count_max)

    def errors(self, spec: Document, validate: Callable[[], FieldErrors]) -> FieldErrors:
        """Return the errors of the spec; it is not validated if an equal one was valid."""
        try:
            digest = _digest(spec)
        except TypeError:
            # A number that JSON text does not show as it is.
            return validate()
        if digest in self._valid:
            return []
        errors = validate()
        if not errors:
            self._valid.add(digest)
        return errors


def _digest(spec: Document) -> bytes:
    text = orjson.dumps(spec)
    volumes = spec.get("volumes")
    if volumes:
        name = volumes[-1].get("name") or ""
        if _TOKEN_VOLUME.fullmatch(name):
            text = text.replace(name.encode(), _ANY_TOKEN_VOLUME)
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()
