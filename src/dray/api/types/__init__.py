"""Typed, frozen structures of the kinds that components work with; the modules are generated from the schema."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Base of every structure: keyword-only, with Kubernetes' camelCase names on the wire.

    `gc=False` is safe because frozen trees have no cycles.
    """

    # The OpenAPI definition name, the key of `dray.api.schema.load.struct`.
    schema_name: ClassVar[str]


class PartlyDecoded(Message, frozen=True, kw_only=True):
    """Base of types that leave parts of an object as JSON (`msgspec.Raw`), because few readers need them.

    They can be made of JSON only.
    """
