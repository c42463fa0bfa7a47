"""Builds the image of all charts: busybox, the running Python with the modules of the stub, and the stub."""

from __future__ import annotations

import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

STUB = Path(__file__).with_name("stub.py")
# Prints the files of every module that the stub has imported, the interpreter's own included. Some replace themselves
# by another module, such as collections.abc, so that their names count, too.
_LIST_FILES = """
import os, runpy, sys
runpy.run_path(sys.argv[1], run_name="stub")
for name, module in list(sys.modules.items()):
    named = os.path.join(os.path.dirname(os.__file__), *name.split(".")) + ".py"
    print(getattr(module, "__file__", None) or "", named if os.path.exists(named) else "")
"""
# Python looks for this module to find out where it is installed.
_LANDMARK = "os.py"


def _libraries(path: Path) -> list[Path]:
    """The shared libraries that a file needs, by the names under which they are searched for."""
    text = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", text)]


def _copy(path: Path, root: Path) -> None:
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def add_stub(root: Path) -> None:
    """Add Python and the stub to a root file system with busybox."""
    python = Path(sys.executable).resolve()
    listing = subprocess.run(
        [python, "-IS", "-c", _LIST_FILES, STUB], capture_output=True, text=True, check=True
    ).stdout.split()
    files = {python, *(Path(item) for item in listing if item != str(STUB))}
    files |= set(Path(sys.base_prefix).glob(f"lib/python3.*/{_LANDMARK}"))
    for path in list(files):
        if path == python or ".so" in path.suffixes:
            files.update(_libraries(path))
    for path in files:
        _copy(path, root)
        if path.suffix == ".py":
            # Every container would compile the modules otherwise.
            own = root / path.relative_to("/")
            py_compile.compile(str(own), dfile=str(path), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    target = root / "bin" / "stub"
    target.write_text(f"#!{python} -IS\n{STUB.read_text()}")
    target.chmod(0o755)
