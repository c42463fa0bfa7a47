"""Role-based access control with an index of roles and bindings, updated incrementally.

A check visits only the bindings of the caller's name and groups, and its result is cached until a role or binding
changes, so that its cost does not grow with the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from dray.api.document import Document, NamespacedName, key_of
from dray.apiserver.authentication.service_accounts import user_name
from dray.apiserver.authorization.rules import Rule, read_rules
from dray.apiserver.request import Attributes, UserInfo

API_GROUP: Final = "rbac.authorization.k8s.io"
KINDS: Final = frozenset({"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"})
# One entry is under 1 KiB; callers times verbs times resources of a large cluster stay below it.
CACHE_SIZE_MAX: Final = 32768


class Decision(NamedTuple):
    """An authorization decision; the reason is for messages."""

    allowed: bool
    reason: str = ""


DENIED: Final = Decision(allowed=False)

_RoleKey: TypeAlias = tuple[str, NamespacedName]
_Subject: TypeAlias = tuple[str, str]
_BindingKey: TypeAlias = tuple[str, NamespacedName]
_CacheKey: TypeAlias = tuple[str, tuple[str, ...], str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Binding:
    key: _BindingKey
    role: _RoleKey
    # The index key of a subject, and its name in reasons.
    subjects: tuple[tuple[_Subject, str], ...]


@dataclass(frozen=True, slots=True)
class _Role:
    rules: tuple[Rule, ...]
    labels: Mapping[str, str]
    # The label selectors of an aggregated role, whose own rules are ignored.
    selectors: tuple[Document, ...] | None


@dataclass(slots=True)
class _CachedDecision:
    """The cached result for one verb on one resource, for any object name."""

    # Granted by rules with resourceNames that precede any rule without.
    by_name: dict[str, Decision]
    otherwise: Decision


class RulesReview(NamedTuple):
    """All permissions of a user in a namespace."""

    rules: tuple[Rule, ...]
    # One text per binding to a role that does not exist.
    errors: tuple[str, ...]


@dataclass(slots=True)
class RBACIndex:
    """All roles and bindings; changed only by `apply` and `remove`."""

    _roles: dict[_RoleKey, _Role] = field(default_factory=dict)
    _bindings: dict[_BindingKey, _Binding] = field(default_factory=dict)
    # Subject, then namespace ("" for cluster role bindings), then binding.
    _by_subject: dict[_Subject, dict[str, dict[_BindingKey, _Binding]]] = field(default_factory=dict)
    _aggregated: dict[str, tuple[Rule, ...]] = field(default_factory=dict)
    _decisions: dict[_CacheKey, _CachedDecision] = field(default_factory=dict)

    def apply(self, document: Document) -> None:
        """Add or update a role or binding."""
        kind, key = document["kind"], key_of(document)
        assert kind in KINDS
        self._invalidate(kind)
        if kind.endswith("Binding"):
            self._drop_binding((kind, key))
            self._add_binding(_read_binding(kind, key, document))
        else:
            self._roles[kind, key] = _read_role(document)

    def remove(self, kind: str, key: NamespacedName) -> None:
        """Remove a role or binding; unknown ones are ignored."""
        assert kind in KINDS
        self._invalidate(kind)
        if kind.endswith("Binding"):
            self._drop_binding((kind, key))
        else:
            self._roles.pop((kind, key), None)

    def authorize(self, attributes: Attributes) -> Decision:
        """Return the decision by the rules of all of the user's roles."""
        if not attributes.resource:
            return self._decide_path(attributes)
        user = attributes.user
        key = (
            user.name,
            user.groups,
            attributes.verb,
            attributes.group,
            attributes.resource,
            attributes.subresource,
            attributes.namespace,
        )
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide_resource(attributes)
            if len(self._decisions) >= CACHE_SIZE_MAX:
                del self._decisions[next(iter(self._decisions))]
            self._decisions[key] = decision
        if decision.by_name:
            return decision.by_name.get(attributes.name, decision.otherwise)
        return decision.otherwise

    def rules_for(self, user: UserInfo, namespace: str) -> RulesReview:
        """Return every rule of the user in the namespace, those of cluster role bindings first."""
        rules, errors = list[Rule](), list[str]()
        for binding, _ in self._bindings_of(user, namespace):
            found = self.role_rules(*binding.role)
            if found is None:
                errors.append(_missing(binding.role))
            else:
                rules.extend(found)
        return RulesReview(tuple(rules), tuple(errors))

    def role_rules(self, kind: str, key: NamespacedName) -> tuple[Rule, ...] | None:
        """Return the rules of a role, aggregation included; None when it does not exist."""
        role = self._roles.get((kind, key))
        if role is None:
            return None
        if role.selectors is None:
            return role.rules
        known = self._aggregated.get(key.name)
        if known is None:
            known = self._aggregated[key.name] = tuple(dict.fromkeys(self._aggregate(key.name, set())))
        return known

    def _aggregate(self, name: str, seen: set[str]) -> Iterator[Rule]:
        """Return the rules of the roles that the aggregated role selects; `seen` breaks cycles."""
        role = self._roles["ClusterRole", NamespacedName("", name)]
        if role.selectors is None:
            yield from role.rules
            return
        seen.add(name)
        for (kind, key), candidate in sorted(self._roles.items(), key=lambda item: item[0]):
            if kind != "ClusterRole" or key.name in seen:
                continue
            if any(selector_matches(selector, candidate.labels) for selector in role.selectors):
                yield from self._aggregate(key.name, seen)

    def _decide_resource(self, attributes: Attributes) -> _CachedDecision:
        by_name: dict[str, Decision] = {}
        wanted = (attributes.verb, attributes.group, attributes.resource, attributes.subresource)
        errors: list[str] = []
        for binding, subject in self._bindings_of(attributes.user, attributes.namespace):
            rules = self.role_rules(*binding.role)
            if rules is None:
                errors.append(_missing(binding.role))
                continue
            for rule in rules:
                if not rule.allows_resource(*wanted):
                    continue
                granted = Decision(allowed=True, reason=_granted(binding, subject))
                if not rule.names:
                    return _CachedDecision(by_name, granted)
                for name in rule.names:
                    by_name.setdefault(name, granted)
        return _CachedDecision(by_name, _denied(errors))

    def _decide_path(self, attributes: Attributes) -> Decision:
        # Not cached: callers choose the paths, and the rules for them are few.
        errors: list[str] = []
        for binding, subject in self._bindings_of(attributes.user, ""):
            rules = self.role_rules(*binding.role)
            if rules is None:
                errors.append(_missing(binding.role))
            elif any(rule.urls and rule.allows_path(attributes.verb, attributes.path) for rule in rules):
                return Decision(allowed=True, reason=_granted(binding, subject))
        return _denied(errors)

    def _bindings_of(self, user: UserInfo, namespace: str) -> list[tuple[_Binding, str]]:
        """Return the user's bindings with the matching subject; cluster-wide ones first, by name."""
        found: dict[_BindingKey, tuple[_Binding, str]] = {}
        for subject in _subjects_of(user):
            scopes = self._by_subject.get(subject)
            if not scopes:
                continue
            for scope in ("", namespace) if namespace else ("",):
                for key, binding in scopes.get(scope, {}).items():
                    if key not in found:
                        found[key] = (binding, next(text for known, text in binding.subjects if known == subject))
        return [found[key] for key in sorted(found)]

    def _invalidate(self, kind: str) -> None:
        self._decisions.clear()
        if kind == "ClusterRole":
            self._aggregated.clear()

    def _add_binding(self, binding: _Binding) -> None:
        self._bindings[binding.key] = binding
        namespace = binding.key[1].namespace
        for subject, _ in binding.subjects:
            self._by_subject.setdefault(subject, {}).setdefault(namespace, {})[binding.key] = binding

    def _drop_binding(self, key: _BindingKey) -> None:
        binding = self._bindings.pop(key, None)
        if binding is None:
            return
        namespace = key[1].namespace
        for subject, _ in binding.subjects:
            scopes = self._by_subject.get(subject)
            if scopes is None:
                continue
            scope = scopes.get(namespace)
            if scope is not None:
                scope.pop(key, None)
                if not scope:
                    del scopes[namespace]
            if not scopes:
                del self._by_subject[subject]


def selector_matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Report whether a label selector matches the labels; an empty one matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        _EXPRESSIONS[item["operator"]](labels.get(item["key"]), item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    )


_EXPRESSIONS: Final[Mapping[str, Callable[[str | None, Iterable[str]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def _read_role(document: Document) -> _Role:
    aggregation = document.get("aggregationRule")
    selectors = tuple((aggregation or {}).get("clusterRoleSelectors") or ())
    labels = (document.get("metadata") or {}).get("labels") or {}
    return _Role(read_rules(document.get("rules")), labels, selectors if aggregation is not None else None)


def _read_binding(kind: str, key: NamespacedName, document: Document) -> _Binding:
    reference = document["roleRef"]
    namespace = key.namespace if reference["kind"] == "Role" else ""
    subjects = [_read_subject(subject, key.namespace) for subject in document.get("subjects") or ()]
    return _Binding(
        (kind, key),
        (reference["kind"], NamespacedName(namespace, reference["name"])),
        tuple(subject for subject in subjects if subject is not None),
    )


def _read_subject(subject: Document, namespace: str) -> tuple[_Subject, str] | None:
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind in {"User", "Group"}:
        return (kind, name), f'{kind} "{name}"'
    if kind != "ServiceAccount":
        return None
    owner = subject.get("namespace") or namespace
    # A subject without a namespace matches no user.
    return (("User", user_name(owner, name)), f'{kind} "{name}/{owner}"') if owner else None


def _subjects_of(user: UserInfo) -> Iterator[_Subject]:
    yield "User", user.name
    for group in user.groups:
        yield "Group", group


def _granted(binding: _Binding, subject: str) -> str:
    kind, key = binding.key
    name = f"{key.name}/{key.namespace}" if key.namespace else key.name
    role_kind, role_key = binding.role
    return f'RBAC: allowed by {kind} "{name}" of {role_kind} "{role_key.name}" to {subject}'


def _missing(role: _RoleKey) -> str:
    return f'{role[0].lower()}.{API_GROUP} "{role[1].name}" not found'


def _denied(errors: list[str]) -> Decision:
    if not errors:
        return DENIED
    texts = list(dict.fromkeys(errors))
    return Decision(allowed=False, reason="RBAC: " + (texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"))
