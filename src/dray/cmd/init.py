"""`dray init driver NAME`: creates a project for a DRA driver, with tests, manifests and a CI workflow."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from dray.cli.command import EXIT_FAILURE, Parser

PROG: Final = "dray init"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_MAX: Final = 63
# The templates, and where they go.
_FILES: Final[Mapping[str, str]] = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "init.py.txt": "src/$package/__init__.py",
    "driver.py.txt": "src/$package/driver.py",
    "test_driver.py.txt": "tests/test_driver.py",
    "Dockerfile.txt": "Dockerfile",
    "deviceclass.yaml.txt": "deploy/deviceclass.yaml",
    "rbac.yaml.txt": "deploy/1-rbac.yaml",
    "daemonset.yaml.txt": "deploy/daemonset.yaml",
    "test.yaml.txt": ".github/workflows/test.yaml",
}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Create a project for a DRA driver: the driver, tests with a cluster of their own, a Dockerfile, a DaemonSet "
        "with its permissions, and a CI workflow.",
    )
    parser.add_argument("what", choices=("driver",), help="what to create")
    parser.add_argument("name", metavar="NAME", help="the driver's name, as in lamp.example.com, or just lamp")
    parser.add_argument("--directory", default="", metavar="DIR", help="where to create it; default: NAME-driver")
    arguments = parser.parse_args(argv)
    if not _NAME.fullmatch(arguments.name) or len(arguments.name) > _NAME_MAX:
        parser.error(
            f'"{arguments.name}" is not a valid driver name: use a DNS name in lower case, for example lamp.example.com'
        )
    words = placeholders(arguments.name)
    root = Path(arguments.directory or words["project"])
    if root.exists() and any(root.iterdir()):
        sys.stderr.write(f"{PROG}: {root} is not empty\n")
        return EXIT_FAILURE
    try:
        written = write_project(root, words)
    except OSError as error:
        sys.stderr.write(f"{PROG}: {error.filename}: {error.strerror}\n")
        return EXIT_FAILURE
    sys.stdout.write("".join(f"{path}\n" for path in written))
    sys.stdout.write(f"\ncd {root}; pip install -e '.[test]'; pytest\n")
    return 0


def placeholders(name: str) -> dict[str, str]:
    """Return what is replaced in the templates."""
    stem = name.partition(".")[0]
    words = re.split(r"-+", stem)
    class_name = "".join(word.capitalize() for word in words)
    return {
        "driver": name if "." in name else f"{name}.example.com",
        "stem": stem,
        "project": f"{stem}-driver",
        "package": f"{'_'.join(words)}_driver",
        # A class may not begin with a digit.
        "class_name": f"{class_name if class_name[0].isalpha() else f'Device{class_name}'}Driver",
        "variable": "_".join(words).upper() if stem[0].isalpha() else f"DEVICE_{'_'.join(words).upper()}",
    }


def write_project(root: Path, words: Mapping[str, str]) -> list[Path]:
    """Write all files below the root; return them."""
    templates = files("dray.cmd").joinpath("driver_project")
    written = []
    for source, target in _FILES.items():
        path = root / Template(target).substitute(words)
        text = Template(templates.joinpath(source).read_text(encoding="utf-8")).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
