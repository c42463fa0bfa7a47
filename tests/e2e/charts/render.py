"""Renders reduced forms of drivers' charts: `python -m tests.e2e.charts.render FOLDER` writes a file for each.

The templates have the kinds, fields and ports of the charts, with a stub in place of every program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from dray.api.document import Document

TEMPLATES = Path(__file__).with_name("templates")
_DRIVER = ("driver-account", "slice-policy")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its templates, and values for them."""

    name: str
    templates: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    # The ports that its Pods listen on, by the name of the value.
    ports: Mapping[str, int] = field(default_factory=dict)
    # A strategic merge patch for its DaemonSet.
    overlay: str = ""
    # How many objects the original renders.
    count: int = 0


def _intel(name: str, kind: str, folder: str, count: int, *more: str, overlay: str = "") -> Chart:
    values = {
        "DRIVER": f"{kind}.intel.com",
        "FOLDER": folder,
        "DEVICES_PATH": "/host-sys",
        "SYSFS_ROOT": "/fake-sysfs" if overlay else "/host-sys",
    }
    templates = ("intel-driver", *more, *_DRIVER)
    return Chart(name, templates, values, {"HEALTH_PORT": 51515}, overlay, count)


_EXAMPLE = ("example-driver", *_DRIVER)
_EXAMPLE_VALUES = {"DRIVER": "gpu.example.com"}
_EXAMPLE_PORTS = {"HEALTH_PORT": 51515, "METRICS_PORT": 8080}
_GPU_CLASS = "intel-gpu-monitor-class"

CHARTS: Mapping[str, Chart] = {
    "E": Chart("dra-example-driver", _EXAMPLE, _EXAMPLE_VALUES, _EXAMPLE_PORTS, count=8),
    "E+": Chart(
        "dra-example-driver-webhook",
        (*_EXAMPLE, "example-driver-webhook"),
        _EXAMPLE_VALUES,
        _EXAMPLE_PORTS | {"WEBHOOK_PORT": 443},
        count=16,
    ),
    "N": Chart(
        "nvidia-dra-driver-gpu",
        ("nvidia-dra-driver", *_DRIVER),
        {"DRIVER": "gpu.nvidia.com"},
        {"HEALTH_PORT": 51515, "HEALTH_PORT_2": 51516, "METRICS_PORT": 8080, "CONTROLLER_PORT": 8080},
        count=24,
    ),
    "G": _intel("intel-gpu", "gpu", "/run/xpumd", 8, _GPU_CLASS),
    "A": _intel("intel-gaudi", "gaudi", "/etc/habanalabs", 7),
    "Q": _intel("intel-qat", "qat", "/var/lib/qat", 7),
    "F": _intel("intel-gpu-faked", "gpu", "/run/xpumd", 8, _GPU_CLASS, overlay="intel-gpu-faker"),
    "D": Chart("dranet", ("dranet",), ports={"METRICS_PORT": 9177}, count=4),
    "P": Chart("nvidia-device-plugin", ("nvidia-device-plugin",), count=5),
    "P+": Chart("nvidia-device-plugin-gfd", ("nvidia-device-plugin", "nvidia-feature-discovery"), count=7),
    "X": Chart(
        "node-feature-discovery",
        ("node-feature-discovery",),
        ports={"WORKER_PORT": 8080, "MASTER_PORT": 8080, "GC_PORT": 8080},
        count=21,
    ),
}
# What the charts with a webhook expect in the cluster.
CERT_MANAGER = "cert-manager"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that all charts share."""

    image: str = "registry.example.com/stub:1"
    # The folder that the charts expect at /var/lib/kubelet.
    kubelet: str = "/var/lib/kubelet"
    # A folder below which the other host paths are, one for each chart; empty for the root.
    host: str = ""


def documents(template: str, values: Mapping[str, str] | None = None) -> list[Document]:
    """Return the objects of one template; a value that is not given is an error."""
    text = Template((TEMPLATES / f"{template}.yaml").read_text()).substitute(values or {})
    return [item for item in yaml.safe_load_all(text) if item]


def render(short: str, settings: Settings) -> list[Document]:
    """Return the objects of a chart."""
    chart = CHARTS[short]
    values = {
        "NAME": chart.name,
        "NAMESPACE": chart.name,
        "IMAGE": settings.image,
        "KUBELET": settings.kubelet,
        "HOST": f"{settings.host}/{chart.name}" if settings.host else "",
        **chart.values,
        **{name: str(port) for name, port in chart.ports.items()},
    }
    found = [item for template in chart.templates for item in documents(template, values)]
    if chart.overlay:
        (patch,) = documents(chart.overlay, values)
        for item in found:
            if item["kind"] == "DaemonSet":
                _merge(item, patch)
    return found


def _merge(target: Any, patch: Any) -> None:
    """Apply an overlay as kustomize does: lists of objects are merged by name, other values replaced."""
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            present = {item["name"]: item for item in target.setdefault(key, [])}
            for item in value:
                if item["name"] in present:
                    _merge(present[item["name"]], item)
                else:
                    target[key].append(item)
        else:
            target[key] = value


def main(folder: str) -> None:
    """Write all charts with their own ports and paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for short, chart in CHARTS.items():
        text = yaml.safe_dump_all(render(short, Settings()), sort_keys=False)
        (Path(folder) / f"{chart.name}.yaml").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
