"""The differences between the answers that are known, by name; docs/differences.md has a line for each."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dray.apiserver.registry import by_schema
from tests.differential.api.generator import JSON_PATCH, Step

# Status, body and warnings.
Answer: TypeAlias = list[Any]
Pair: TypeAlias = tuple[Answer, Answer]

_BY_SCHEMA: Final = frozenset(definition.resource for definition in by_schema.DEFINITIONS)
_OUR_WARNINGS: Final = (
    "none of its components acts on them",
    "is stored but not enforced",
    "dropped, because the feature",
)
_SHOWN_VALUE: Final = re.compile(r"^((?:Invalid|Duplicate|Unsupported) value: ).*?(: (?!.*\": ).*)?$", re.S)
_DECODING: Final = re.compile(r"( cannot be handled as a \w+: ).*", re.S)
_EMPTY: Final[tuple[Any, ...]] = (None, "", 0, False, [], {}, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z")


# Rules of Kubernetes that are not checked, by kind and field.
_UNCHECKED: Final = {
    "cronjobs": r".*\.resources\.claims|.*\.(podFailurePolicy|successPolicy).*|metadata\.finalizers.*",
    "daemonsets": r"patch",
    "endpoints": r".*\.nodeName",
    "endpointslices": r".*\.hints\..*",
    "events": r"source",
    "jobs": r"spec\.(backoffLimitPerIndex|maxFailedIndexes|podFailurePolicy.*|successPolicy.*)|metadata\.finalizers.*",
    "mutatingwebhookconfigurations": r".*\.admissionReviewVersions.*",
    "validatingwebhookconfigurations": r".*\.admissionReviewVersions.*",
    "nodes": r"spec\.podCIDRs.*",
    "persistentvolumeclaims": r"spec",
    "persistentvolumes": r"metadata\.generateName|spec\.csi",
    "resourceclaimtemplates": r"spec\.metadata\..*",
    "resourcepoolstatusrequests": r"metadata\.generateName",
    "resourceslices": r"spec",
    "statefulsets": r"spec\.(template\.spec\.volumes|volumeClaimTemplates).*",
}
# Of what only Kubernetes' own decoder or storage says.
_ODD_TEXTS: Final = (
    "Key: /priorityclasses/",
    "autoscaling.alpha.kubernetes.io/current-metrics",
    "strconv.ParseUint: parsing",
    "of type []uint8",
    "must not contain more than one slash",
    "list element types are not identical",
    "unable to find api field in struct",
    "cannot unmarshal number ",
)
_DISABLED: Final = {
    "csinodes": ("storageHealth",),
    "nodes": ("podPreemptionPolicy", "config", "configSource"),
    "persistentvolumeclaims": ("healthStatus",),
    "pods": ("volumeHealth",),
    "resourcepoolstatusrequests": ("partitionSummary",),
    "workloads": ("compositePodGroupTemplates",),
}


@dataclass(frozen=True, slots=True)
class Known:
    """A difference: makes two answers the same as far as they differ in that way alone."""

    name: str
    level: Callable[[str, Step, Answer, Answer], Pair]


def explain(kind: str, step: Step, expected: Answer, found: Answer) -> list[str] | None:
    """The names of the differences that make up the difference of two answers; None if something is left."""
    names = []
    for known in KNOWN:
        if expected == found:
            break
        pair = known.level(kind, step, copy.deepcopy(expected), copy.deepcopy(found))
        if pair != (expected, found):
            names.append(known.name)
            expected, found = pair
    return names if expected == found else None


def _equal_if(holds: bool, expected: Answer, found: Answer) -> Pair:
    return (found, found) if holds else (expected, found)


def _is_object(answer: Answer) -> bool:
    return bool(answer[0] < 300 and isinstance(answer[1], dict) and "metadata" in answer[1])


def _additional_warnings(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    found[2] = [text for text in found[2] if not any(part in text for part in _OUR_WARNINGS)]
    return expected, found


def _missing_warnings(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    if _is_object(expected) and set(found[2]) < set(expected[2]):
        expected[2] = found[2]
    return expected, found


def _certificate_requests(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    if kind.endswith("/certificatesigningrequests"):
        if expected[0] == 200 and found[0] == 409:
            # A conflict with an owner that Kubernetes has not recorded.
            return found, found
        for answer in (expected, found):
            if _is_object(answer):
                answer[1]["metadata"].pop("managedFields", None)
                answer[1].get("spec", {}).pop("extra", None)
    return expected, found


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        pruned = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in pruned.items() if item is None or item not in _EMPTY}
    return [_without_empty(item) for item in value] if isinstance(value, list) else None if value in _EMPTY else value


def _zero_values(_kind: str, step: Step, expected: Answer, found: Answer) -> Pair:
    """Fields without a value, and their owners."""
    if not (_is_object(expected) and _is_object(found)):
        # A JSON patch can remove a field that has no value only where it is written.
        texts = [json.dumps(answer[1]) for answer in (expected, found)]
        patched = step.content_type == JSON_PATCH and any("server rejected our request due" in text for text in texts)
        return _equal_if(patched and '"remove"' in json.dumps(step.body), expected, found)
    owners = [answer[1]["metadata"].pop("managedFields", None) or [] for answer in (expected, found)]
    given = _names_of_values(expected[1])
    for answer, entries in zip((expected, found), owners, strict=True):
        answer[1] = _dropped_nulls(_without_empty(answer[1]))
        kept = [entry | {"fieldsV1": _owned_values(entry["fieldsV1"], given)} for entry in entries]
        answer[1].setdefault("metadata", {})["managedFields"] = kept
    return expected, found


def _dropped_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _dropped_nulls(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {})}
    return [_dropped_nulls(item) for item in value] if isinstance(value, list) else value


def _names_of_values(value: Any) -> set[str]:
    """The names of the fields that have a value anywhere in the object."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, item in value.items():
            if item not in _EMPTY:
                found |= {key} | _names_of_values(item)
    elif isinstance(value, list):
        for item in value:
            found |= _names_of_values(item)
    return found


def _owned_values(tree: Any, given: set[str]) -> Any:
    return {
        element: _owned_values(below, given)
        for element, below in tree.items()
        if element != "." and (below or not element.startswith("f:") or element[2:] in given)
    }


def _generations(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    """Kubernetes counts changes that are dropped, or only in the writing of raw values, and CSIDrivers from 0."""
    if ("resource.k8s.io" in kind or kind.endswith("/csidrivers")) and _is_object(expected) and _is_object(found):
        for answer in (expected, found):
            answer[1]["metadata"].pop("generation", None)
    return expected, found


def _disabled_features(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    """Fields of features that Kubernetes has switched off, and that no part of Dray reads."""
    if _is_object(expected) and _is_object(found):
        for field in _DISABLED.get(kind.rpartition("/")[2], ()):
            if not _has(expected[1], field):
                _drop(found[1], field)
    names = _DISABLED.get(kind.rpartition("/")[2], ())
    fields = {part for cause in _causes(found) for part in re.split(r"[.[]", cause["field"])}
    return _equal_if(expected[0] < 300 and not fields.isdisjoint(names), expected, found)


def _has(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return name in value or any(_has(item, name) for item in value.values())
    return isinstance(value, list) and any(_has(item, name) for item in value)


def _drop(value: Any, name: str) -> None:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _drop(item, name)
    if isinstance(value, dict):
        value.pop(name, None)


def _unchecked_status(_kind: str, step: Step, expected: Answer, found: Answer) -> Pair:
    in_status = {cause["field"].partition(".")[0] for cause in _causes(expected)} == {"status"}
    return _equal_if(in_status and "/status" in step.path and found[0] == 200, expected, found)


def _unchecked_fields(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    pattern = _UNCHECKED.get(kind.rpartition("/")[2], r"metadata\.finalizers.*")
    fields = [cause["field"] for cause in _causes(expected)]
    if kind.endswith("/services") and expected[0] == 422 and found[0] == 404:
        # Kubernetes would create a Service by PUT of its status.
        return found, found
    unchecked = bool(fields) and all(re.fullmatch(pattern, field) for field in fields)
    return _equal_if(unchecked and found[0] in (200, 201), expected, found)


def _odd_texts(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    text = json.dumps([expected[1], found[1]])
    return _equal_if(any(part in text for part in _ODD_TEXTS), expected, found)


def _optional_claims(kind: str, step: Step, expected: Answer, found: Answer) -> Pair:
    return _equal_if(kind.endswith("/pods") and '"optional"' in json.dumps(step.body), expected, found)


def _owners(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    if _is_object(expected) and _is_object(found):
        for answer in (expected, found):
            answer[1]["metadata"].pop("managedFields", None)
    return expected, found


def _accepted_by_schema(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    by_schema_alone = kind.rpartition("/")[2] in _BY_SCHEMA
    return _equal_if(by_schema_alone and expected[0] == 422 and found[0] in (200, 201, 422), expected, found)


def _status_writers(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    resource = kind.rpartition("/")[2]
    return _equal_if(resource in ("validatingadmissionpolicies", "flowschemas"), expected, found)


def _causes(answer: Answer) -> list[dict[str, Any]]:
    if answer[0] != 422 or not isinstance(answer[1], dict):
        return []
    found: list[dict[str, Any]] = (answer[1].get("details") or {}).get("causes") or []
    return found


def _raw_values(kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    """Kubernetes compares the text of raw values, in which a patch changes spaces."""
    texts = [cause["field"] for cause in _causes(expected)]
    return _equal_if(kind.endswith("/controllerrevisions") and texts == ["data"] and found[0] == 200, expected, found)


def _times(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    return _equal_if('cannot parse \\"Z\\" as \\".000000\\"' in json.dumps(expected[1]), expected, found)


def _both_attributes(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
    mine = [cause for cause in _causes(found) if text in cause["message"]]
    return _equal_if(bool(mine) and expected[0] in (200, 201, 422), expected, found)


def _patch_texts(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    in_patch = [[cause["field"] == "patch" for cause in _causes(answer)] for answer in (expected, found)]
    return _equal_if(in_patch == [[True], [True]], expected, found)


def _decoding_texts(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    if expected[0] == found[0] == 400:
        for answer in (expected, found):
            answer[1]["message"] = _DECODING.sub(r"\1", answer[1]["message"])
    return expected, found


def _apply_texts(_kind: str, step: Step, expected: Answer, found: Answer) -> Pair:
    texts = [str(answer[1].get("message")) for answer in (expected, found)]
    typed = texts[0].startswith(("failed to create typed ", "failed to convert new"))
    return _equal_if(typed and found[0] >= 400, expected, found)


def _changed_specs(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    for answer in (expected, found):
        for cause in _causes(answer):
            cause["message"] = cause["message"].partition("\n@@")[0]
    return expected, found


def _shown_values(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    for answer in (expected, found):
        for cause in _causes(answer):
            cause["message"] = _SHOWN_VALUE.sub(r"\1…\2", cause["message"])
    return expected, found


def _causes_of_refusals(_kind: str, _step: Step, expected: Answer, found: Answer) -> Pair:
    return _equal_if(bool(_causes(expected) and _causes(found)), expected, found)


KNOWN: Final = (
    Known("additional warnings", _additional_warnings),
    Known("missing warnings", _missing_warnings),
    Known("certificate requests", _certificate_requests),
    Known("status writers", _status_writers),
    Known("disabled features", _disabled_features),
    Known("fields without values", _zero_values),
    Known("rules of schema", _accepted_by_schema),
    Known("raw values", _raw_values),
    Known("times without fractions", _times),
    Known("both attributes", _both_attributes),
    Known("texts of patches", _patch_texts),
    Known("texts of decoding", _decoding_texts),
    Known("texts of apply", _apply_texts),
    Known("changed specs", _changed_specs),
    Known("shown values", _shown_values),
    Known("causes of refusals", _causes_of_refusals),
    Known("unchecked status", _unchecked_status),
    Known("generations", _generations),
    Known("owners of dropped fields", _owners),
    Known("unchecked fields", _unchecked_fields),
    Known("odd texts", _odd_texts),
    Known("optional claims", _optional_claims),
)
