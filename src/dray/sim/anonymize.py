"""Renames what a snapshot says about its owner, so that it may leave the house; the answers of the tools stay.

Every text is renamed unless it is known to be public: numbers, quantities, times, versions, constants of the API, and
the words of Kubernetes' and Dray's own messages. Names are renamed part by part ("gpu-node-17" is three parts), each
part alike everywhere: in names, labels, selectors, CEL expressions and messages. So all references still match, a name
still begins as the name that it was made from, and a CEL literal still equals the attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.api.schema.load import kind_type, object_meta
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type
from dray.sim.double_offers import IDENTITIES, VENDOR_NAMES
from dray.sim.kept_fields import ANNOTATIONS, TEMPLATE_DIGEST
from dray.sim.name_table import UID, NameTable, message_words
from dray.sim.snapshot import KINDS

# Shorter parts of names say nothing.
_SHORT: Final = 2
_DIGITS_KEPT: Final = 4
_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_WORD_AND_NUMBER: Final = re.compile(rf"([A-Za-z]+)(\d{{0,{_DIGITS_KEPT}}})")
_AMOUNT: Final = re.compile(rf"\d{{1,{_DIGITS_KEPT}}}[A-Za-z]{{0,{_SHORT}}}")
_QUANTITY: Final = re.compile(r"[+-]?\d+(\.\d+)?([munkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?")
_VERSION: Final = re.compile(r"v?\d{1,4}(\.\d{1,4}){1,2}")
_API_VERSION: Final = re.compile(r"v\d{1,2}((alpha|beta)\d{1,2})?")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# Where a device is in its machine says nothing about whose it is.
_PCI_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}\.[0-7])?")
_ADDRESS: Final = re.compile(r"(\d{1,3}(\.\d{1,3}){3}|(?=[0-9a-fA-F:]*::?[0-9a-fA-F:]*)[0-9a-fA-F]*:[0-9a-fA-F:]+)")
_IN_TEXT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/:@-]*[A-Za-z0-9])?")
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Domains whose names Kubernetes gives, and Dray's own: their words are public, if they are known.
_PUBLIC_DOMAIN: Final = re.compile(r"(?:^|[./])(?:kubernetes\.io|k8s\.io|dray\.dev)(?:/|$)|^count/")
# Names in keys of quotas.
_COMPOSED: Final = re.compile(
    r"(?P<prefix>requests\.|limits\.|)(?P<name>.+?)(?P<suffix>\.(?:deviceclass\.resource|storageclass\.storage)\.k8s\.io/.+|)"
)
_PUBLIC: Final = frozenset(
    {
        *("default", "kube-system", "kube-public", "kube-node-lease", "default-scheduler", "metadata.name"),
        *("system-cluster-critical", "system-node-critical", "linux", "windows", "amd64", "arm64"),
        *("cpu", "memory", "ephemeral-storage", "storage", "pods", "hugepages-1Gi", "hugepages-2Mi"),
        *("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"),
        *("services.loadbalancers", "services.nodeports", "pod-template-hash", "controller-revision-hash"),
        *("controller-uid", "job-name", "kubernetes.io/config.mirror", "safe-to-evict"),
        *ANNOTATIONS,
        TEMPLATE_DIGEST,
        *VENDOR_NAMES,
    }
)
_SHORT_WORDS: Final = frozenset(
    {"as", "at", "by", "gt", "if", "in", "io", "ip", "lt", "no", "of", "on", "or", "to", "up"}
)
# Attributes that tools recognize, whatever the driver, in small letters.
_ATTRIBUTES: Final = IDENTITIES | {"pcieroot", "numanode"}
_GROUPS: Final = frozenset(group for group, _ in KINDS.values())
# By the field's name; all others are names.
_CONSTANTS: Final = frozenset({"reason", "type", "status", "phase", "kind", "apiGroup"})
_TEXTS: Final = frozenset({"message", "note"})
_CEL_WORDS: Final = frozenset(
    {
        *("device", "driver", "attributes", "capacity", "allowMultipleAllocations", "true", "false", "null", "in"),
        *("semver", "quantity", "cel", "bind", "math", "lists", "optional", "size", "string", "int", "double", "bool"),
    }
)
_CEL_TOKEN: Final = re.compile(
    r"""(?P<text>[rR]?(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<call>\s*\()?|."""
    "",
    re.DOTALL,
)


def anonymized(documents: Sequence[Document], table: NameTable) -> list[Document]:
    """Return the objects with other names; the table gets the names that it lacks."""
    parts = _Parts()
    names: set[str] = set()
    collecting = _Renamer(parts.collect, table, names)
    for document in documents:
        collecting.document(document)
    table.add(parts.found)
    renaming = _Renamer(table.word, table, names)
    return [renaming.document(document) for document in documents]


def anonymized_name(name: str, table: NameTable) -> str:
    """Return another name for a name."""
    parts = _Parts()
    _Renamer(parts.collect, table, set()).name(name)
    table.add(parts.found)
    return _Renamer(table.word, table, set()).name(name)


class _Parts:
    """Collects the parts of names that need words."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def collect(self, part: str) -> str:
        self.found.add(part)
        return part


@cache
def _constant_words() -> frozenset[str]:
    return message_words() | _SHORT_WORDS


def _is_public_name(name: str) -> bool:
    if name in _PUBLIC or name.lower() in _ATTRIBUTES or (_QUANTITY.fullmatch(name) and len(name) <= _DIGITS_KEPT):
        return True
    return any(pattern.fullmatch(name) for pattern in (_VERSION, _TIME, _PCI_ADDRESS))


def _is_public_word(word: str) -> bool:
    return len(word) <= _SHORT or word.isdigit() or word.lower() in message_words()


class _Renamer:
    """Traverses objects; `word` gives the word for a part of a name."""

    def __init__(self, word: Callable[[str], str], table: NameTable, names: set[str]) -> None:
        self._word = word
        self._table = table
        # The whole names that were seen, for messages.
        self._names = names

    def document(self, document: Document) -> Document:
        """Return the object with other names."""
        type_ = kind_type(GroupVersion.parse(document["apiVersion"]).kind(document["kind"]))
        if type_ is None:
            api_version, kind = self._api_version(document["apiVersion"]), self._constant(document["kind"])
            rest = {name: item for name, item in document.items() if name not in ("apiVersion", "kind", "metadata")}
            metadata = self._value(document["metadata"], object_meta(), "metadata")
            return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **self._any(rest)}
        found: Document = self._value(document, type_, "")
        return {**found, "apiVersion": document["apiVersion"], "kind": document["kind"]}

    def _value(self, value: Any, type_: Type, field: str) -> Any:
        if isinstance(type_, StructType) and isinstance(value, dict):
            return {
                name: self._value(item, type_.fields[name].type, name) if name in type_.fields else self._any(item)
                for name, item in value.items()
            }
        if isinstance(type_, ListOf) and isinstance(value, list):
            return [self._value(item, type_.element, field) for item in value]
        if isinstance(type_, MapOf) and isinstance(value, dict):
            return {self.name(name): self._value(item, type_.element, "") for name, item in value.items()}
        if not isinstance(value, str):
            return value if isinstance(value, (bool, int, float)) or value is None else self._any(value)
        if type_ in (Scalar.QUANTITY, Scalar.TIME, Scalar.MICRO_TIME, Scalar.DURATION) and value[:1].isdigit():
            return value
        return self._text(value, field)

    def _any(self, value: Any) -> Any:
        """Return a value without a schema: the keys are names too."""
        if isinstance(value, dict):
            return {self.name(name): self._any(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._any(item) for item in value]
        return self.name(value) if isinstance(value, str) else value

    def _text(self, value: str, field: str) -> str:
        if field == "expression":
            return self._expression(value)
        if field in _TEXTS:
            return self._message(value)
        if field == "apiVersion":
            return self._api_version(value)
        if field in _CONSTANTS or value[:1].isupper():
            return self._constant(value)
        return self.name(value)

    # --- Kinds of text. ---

    def name(self, name: str) -> str:
        """Return another name; the same for the same, and with the same structure."""
        if _is_public_name(name):
            return name
        if UID.fullmatch(name):
            return self._table.uid(name)
        if _ADDRESS.fullmatch(name):
            return self._table.address(name)
        self._names.add(name)
        found = _COMPOSED.fullmatch(name)
        if found and (found["prefix"] or found["suffix"]):
            return f"{found['prefix']}{self.name(found['name'])}{self._known(found['suffix'])}"
        return self._known(name) if _PUBLIC_DOMAIN.search(name) else self._parts_of(name)

    def _parts_of(self, name: str) -> str:
        domain, slash, rest = name.rpartition("/")
        if slash and (domain in _PUBLIC or rest.lower() in _ATTRIBUTES):
            return f"{self.name(domain)}/{self.name(rest)}"
        return _RUN.sub(lambda found: self._run(found[0]), name)

    def _run(self, run: str) -> str:
        """Return other letters for a part of a name; short numbers stay."""
        if found := _WORD_AND_NUMBER.fullmatch(run):
            letters, digits = found.groups()
            return f"{letters if len(letters) <= _SHORT else self._word(letters)}{digits}"
        if _AMOUNT.fullmatch(run) or len(run) <= _SHORT:
            return run
        return self._table.number(run) if run.isdigit() else self._word(run)

    def _known(self, text: str) -> str:
        """Return a text whose known words stay."""
        return _RUN.sub(
            lambda found: found[0] if all(map(_is_public_word, _camel(found[0]))) else self._run(found[0]), text
        )

    def _constant(self, value: str) -> str:
        """Return a constant of the API as it is, and a name for anything else."""
        is_public = value.isalpha() and all(word.lower() in _constant_words() for word in _camel(value))
        return value if is_public else self.name(value)

    def _api_version(self, value: str) -> str:
        group, slash, version = value.rpartition("/")
        if group not in _GROUPS:
            group = self._known(group) if _PUBLIC_DOMAIN.search(group) else self.name(group)
        version = version if _API_VERSION.fullmatch(version) else self.name(version)
        return f"{group}{slash}{version}"

    def _message(self, text: str) -> str:
        """Return a message with other names: those of objects, and all words that are not known from messages."""

        def renamed(found: re.Match[str]) -> str:
            word = found[0]
            is_prose = word.isalpha() and _is_public_word(word)
            # Words with numbers are names, also of what does not exist any more.
            is_name = word in self._names or (any(map(str.isdigit, word)) and not _PUBLIC_DOMAIN.search(word))
            return self._known(word) if is_prose or not is_name else self.name(word)

        return _IN_TEXT.sub(renamed, text)

    def _expression(self, text: str) -> str:
        """Return a CEL expression about the renamed drivers, attributes and values."""
        out: list[str] = []
        for found in _CEL_TOKEN.finditer(text):
            token = found[0]
            if found["text"] is not None:
                quote = 1 + (token[0] in "rR")
                token = f"{token[:quote]}{self._literal(token[quote:-1])}{token[-1]}"
            elif found["name"] is not None and found["call"] is None and found["name"] not in _CEL_WORDS:
                token = self.name(token)
            out.append(token)
        return "".join(out)

    def _literal(self, text: str) -> str:
        """Return another text for that of a literal; what is escaped stays."""
        if "\\" not in text:
            return self.name(text)
        return "".join(part if part.startswith("\\") else self.name(part) for part in re.split(r"(\\.)", text))


def _camel(text: str) -> Iterator[str]:
    """Yield the words of a constant."""
    return (found[0] for found in _CAMEL.finditer(text))
