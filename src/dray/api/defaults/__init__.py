"""Defaults of the built-in kinds, by group. Every module exports its defaulters as `DEFAULTERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from dray.api.document import Document, GroupVersionKind

# Fills in the defaults of an object in place, given the current time.
Defaulter: TypeAlias = Callable[[Document, datetime], None]
Defaulters: TypeAlias = Mapping[GroupVersionKind, Defaulter]
# Frequently written kinds whose defaulters neither read nor change anything but the spec.
OF_SPEC_ALONE: Final = frozenset({GroupVersionKind("", "v1", "Pod")})
