"""Generate docs/reference and the diagram of docs/concepts.md from the code.

`python -m tools.generate_reference` rewrites them. `--check` lists outdated files and fails if there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.reference import pictures
from tools.reference.completion import completion_flags
from tools.reference.documents import documents_page, schema
from tools.reference.events import events_page
from tools.reference.flags import flags_page
from tools.reference.gates import gates_page
from tools.reference.kinds import kinds_page
from tools.reference.metrics import metrics_page

from dray.cmd.completion import FLAGS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    "flags": flags_page,
    "kinds": kinds_page,
    "metrics": metrics_page,
    "events": events_page,
    "documents": documents_page,
    "feature-gates": gates_page,
}


def generated() -> Iterator[tuple[Path, str]]:
    """Yield every file with its current text."""
    for name, make in PAGES.items():
        yield DOCS / "reference" / f"{name}.md", make()
    yield DOCS / "reference" / "documents.schema.json", schema()
    yield FLAGS, completion_flags()
    concepts = DOCS / "concepts.md"
    yield concepts, pictures.rewritten(concepts.read_text())


def main() -> int:
    """Rewrite or check the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    checking = parser.parse_args().check
    stale = [(path, text) for path, text in generated() if not path.exists() or path.read_text() != text]
    for path, text in stale:
        print(path.relative_to(DOCS.parent))
        if not checking:
            path.write_text(text)
    return int(checking and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
