"""Sends the requests of a case to a server, and leaves out of its answers what every server chooses by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from tests.differential.api.generator import Case, Step
from tests.e2e.apiserver.calls import Answer, Caller

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_SERVICE_ADDRESS: Final = re.compile(r"10\.96\.0\.\d+")
_WARNING: Final = re.compile(r'299 - "((?:[^"\\]|\\.)*)"')
_CHOSEN_METADATA: Final = ("uid", "resourceVersion", "creationTimestamp", "selfLink")
_NODE_PORTS: Final = range(30000, 32768)


def prepare(caller: Caller) -> None:
    """The namespaces of the requests."""
    caller.call("POST", "/api/v1/namespaces", {"metadata": {"name": "limited"}})


def answers(caller: Caller, case: Case) -> list[Any]:
    """What a server says to the requests of a case, in a form that another server should give too."""
    found: list[Any] = []
    metadata: dict[str, Any] = {}
    sent = json.dumps([step.body for step in case.steps])
    for step in case.steps:
        answer = _send(caller, step, metadata)
        shown = _read(answer)
        if isinstance(shown, dict) and isinstance(shown.get("metadata"), dict) and "uid" in shown["metadata"]:
            metadata = shown["metadata"]
        found.append(_comparable(answer, shown, sent, metadata))
    if metadata:
        caller.call("DELETE", case.path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    return found


def _send(caller: Caller, step: Step, metadata: dict[str, Any]) -> Answer:
    body = None
    if step.body is not None:
        text = json.dumps(step.body).replace("$VERSION", metadata.get("resourceVersion", "1"))
        body = text.replace("$UID", metadata.get("uid", "none")).encode()
    return caller.call(step.method, step.path, body, content_type=step.content_type)


def _read(answer: Answer) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.body.decode(errors="replace")


def _comparable(answer: Answer, shown: Any, sent: str, metadata: dict[str, Any]) -> list[Any]:
    warnings = sorted(_WARNING.findall(", ".join(answer.headers.get_all("Warning") or ())))
    if isinstance(shown, dict) and shown.get("kind") == "Status" and "status" in shown:
        shown = _status(shown)
    text = json.dumps(_cleaned(shown, sent))
    for chosen, name in ((metadata.get("uid"), "$UID"), (metadata.get("resourceVersion"), "$VERSION")):
        if chosen and len(chosen) > 5:
            text = text.replace(chosen, name)
    return [answer.status, json.loads(text), warnings]


def _status(status: dict[str, Any]) -> dict[str, Any]:
    details = dict(status.get("details") or {})
    details.pop("uid", None)
    causes = details.get("causes") or []
    if causes and status.get("reason") == "Invalid":
        # The message repeats the causes, whose order is no promise.
        details["causes"] = sorted(causes, key=lambda cause: json.dumps(cause, sort_keys=True))
        return {"reason": status["reason"], "details": details}
    message = _sorted_lines(status.get("message", ""))
    return {"reason": status.get("reason", status.get("status")), "message": message, "details": details}


def _cleaned(value: Any, sent: str) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item, sent) for key, item in sorted(value.items()) if key not in _CHOSEN_METADATA}
    if isinstance(value, list):
        return [_cleaned(item, sent) for item in value]
    if isinstance(value, str):
        value = _TIME.sub(lambda found: found[0] if found[0] in sent else "$TIME", value)
        return _SERVICE_ADDRESS.sub(lambda found: found[0] if found[0] in sent else "$ADDRESS", value)
    if isinstance(value, int) and value in _NODE_PORTS and str(value) not in sent:
        return "$PORT"
    return value


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, one line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            if key not in found:
                yield f"{path}/{key}: missing, expected {_short(expected[key])}"
            elif key not in expected:
                yield f"{path}/{key}: additional {_short(found[key])}"
            else:
                yield from differences(expected[key], found[key], f"{path}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{path}/{index}")
    elif expected != found or type(expected) is not type(found):
        yield f"{path}: expected {_short(expected)}, got {_short(found)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 400 else f"{text[:400]}…"


def _sorted_lines(message: str) -> str:
    """The errors of an apply, which Kubernetes reports in any order."""
    head, *lines = message.split("\n")
    return "\n".join((head, *sorted(lines)))
