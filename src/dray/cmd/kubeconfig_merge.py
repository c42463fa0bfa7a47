"""Adds the context of a local cluster to the user's kubeconfig, and removes it, as kind does; other entries stay."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

# kubectl's lock, which others wait for as well.
_LOCK_SUFFIX: Final = ".lock"
_LOCK_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.05
_LISTS: Final = ("clusters", "users", "contexts")


class MergeError(ValueError):
    """A kubeconfig that cannot be read or written."""


def default_path() -> Path:
    """Return the file that kubectl would change: the first of $KUBECONFIG, else ~/.kube/config."""
    first = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), "")
    return Path(first) if first else Path.home() / ".kube" / "config"


def add_context(path: Path, name: str, own: Path) -> None:
    """Add the cluster and user of a kubeconfig under a name, and make its context the current one."""
    source = _read(own)
    cluster, user = source["clusters"][0]["cluster"], source["users"][0]["user"]
    with _locked(path):
        document = _without(_read(path) if path.exists() else {}, name)
        document["clusters"].append({"name": name, "cluster": cluster})
        document["users"].append({"name": name, "user": user})
        document["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
        document["current-context"] = name
        _write(path, document)


def remove_context(path: Path, name: str) -> bool:
    """Remove what `add_context` added; return whether it was there."""
    if not path.exists():
        return False
    with _locked(path):
        before = _read(path)
        if not any(item.get("name") == name for item in before.get("contexts") or ()):
            return False
        document = _without(before, name)
        if document.get("current-context") == name:
            document["current-context"] = ""
        _write(path, document)
    return True


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a kubeconfig without the entries of a name."""
    kept = {key: [item for item in document.get(key) or [] if item.get("name") != name] for key in _LISTS}
    return {"apiVersion": "v1", "kind": "Config", **document, **kept}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MergeError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MergeError(f"{path}: not valid YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or any(not isinstance(document.get(key) or [], list) for key in _LISTS):
        raise MergeError(f"{path}: this is no kubeconfig")
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    """Replace the file at once, readable only by its owner."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kubeconfig-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yaml.safe_dump(document, stream, sort_keys=False)
        # A link stays a link: its target is replaced.
        Path(temporary).replace(path.resolve())
    except OSError as error:
        raise MergeError(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file that kubectl uses."""
    lock, deadline = path.with_name(path.name + _LOCK_SUFFIX), time.monotonic() + _LOCK_SECONDS_MAX
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                lock.touch(mode=0o600, exist_ok=False)
                break
            except FileExistsError:
                if time.monotonic() > deadline:
                    raise MergeError(f"{path} is locked; if no other program changes it, remove {lock}") from None
                time.sleep(_POLL_SECONDS)
    except OSError as error:
        raise MergeError(f"{path}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
