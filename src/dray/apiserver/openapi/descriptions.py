"""Descriptions of Kubernetes' types and fields, read from the sources of the installed lightkube-models package.

The modules are parsed as text, one per group-version and only when first needed; none is imported.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_CLASS: Final = re.compile(r'^class (\w+)\(DictMixin\):\n    r?"""(.*?)"""', re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r"^      \* \*\*(\w+)\*\* ``[^`]*`` - ?", re.MULTILINE)
_FIELDS_HEADING: Final = "**parameters**"


class Descriptions(NamedTuple):
    """The descriptions of a type and, by normalized name, of its fields."""

    own: str
    fields: dict[str, str]


_NOTHING: Final = Descriptions("", {})


def fold(field: str) -> str:
    """Normalize a field name: without case and punctuation, since Python spells some differently."""
    return re.sub(r"[^a-z0-9]", "", field.lower().replace("$", "d"))


def describe(definition: str) -> Descriptions:
    """Return the descriptions of a definition such as `io.k8s.api.core.v1.Pod`, empty when there are none."""
    *_, group, version, name = definition.split(".")
    return _module(f"{group}_{version}").get(name, _NOTHING)


def source_version() -> str:
    """Return the version of the package with the descriptions."""
    # Slow to import, and needed only for the documents.
    from importlib import metadata

    return metadata.version("lightkube-models")


@cache
def _module(name: str) -> dict[str, Descriptions]:
    path = _models() / f"{name}.py"
    if not path.is_file():
        return {}
    return {cls: _parse(text) for cls, text in _CLASS.findall(path.read_text(encoding="utf-8"))}


@cache
def _models() -> Path:
    # The parent is located, not imported: it may be the whole lightkube client.
    spec = importlib.util.find_spec("lightkube")
    locations = spec.submodule_search_locations if spec else None
    for location in locations or ():
        if (models := Path(location) / "models").is_dir():
            return models
    return Path()


def _parse(text: str) -> Descriptions:
    own, _, rest = text.partition(_FIELDS_HEADING)
    parts = _FIELD.split(rest)
    fields = {fold(name): _unwrap(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    return Descriptions(_unwrap(own), fields)


def _unwrap(text: str) -> str:
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
