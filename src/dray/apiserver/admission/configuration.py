"""Reads the AdmissionConfiguration file, which configures admission plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from dray.api.pod_security.policy import ConfigurationError, PodSecurityConfiguration, parse_configuration

_API_VERSIONS: Final = ("apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1")


def read_admission_configuration(path: Path) -> PodSecurityConfiguration:
    """Return the configuration of PodSecurity, the only plugin that has one; raises `ConfigurationError`."""
    document = _read(path)
    if not isinstance(document, dict) or document.get("kind") != "AdmissionConfiguration":
        raise ConfigurationError(f"{path}: must be an AdmissionConfiguration of {_API_VERSIONS[0]}")
    if document.get("apiVersion") not in _API_VERSIONS:
        raise ConfigurationError(f"{path}: unknown apiVersion {document.get('apiVersion')!r}")
    result = PodSecurityConfiguration()
    for plugin in document.get("plugins") or ():
        if not isinstance(plugin, dict) or plugin.get("name") != "PodSecurity":
            name = plugin.get("name") if isinstance(plugin, dict) else plugin
            raise ConfigurationError(f"{path}: admission plugin {name!r} has no configuration; PodSecurity has one")
        source = path.parent / plugin["path"] if plugin.get("path") else path
        try:
            result = parse_configuration(_read(source) if source is not path else plugin.get("configuration"))
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from error
    return result


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid YAML: {error}") from error
