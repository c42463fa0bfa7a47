"""Hooks of the documentation site: adds the pages of the repository's root, with their links adjusted."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of the root folder, with their names on the site. SECURITY.md gets another name because docs/ has a security.md.
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the root folder."""
    for name, site_name in ROOT_PAGES.items():
        files.append(File.generated(config, site_name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adjust the links between the root folder and docs/."""
    del config, files
    if page.file.src_uri in ROOT_PAGES.values():
        return _links_from_root(markdown)
    depth = page.file.src_uri.count("/")
    outside = "../" * (depth + 1)
    inside = "../" * depth
    for name, site_name in ROOT_PAGES.items():
        markdown = markdown.replace(f"]({outside}{name}", f"]({inside}{site_name}")
    return markdown


def _links_from_root(markdown: str) -> str:
    """Let links to docs/ start in docs/, and replace links to files that the site does not have by their text."""
    markdown = re.sub(r"\]\(docs/adr/?\)", "](adr/0001-layers-and-documents.md)", markdown)
    markdown = markdown.replace("](docs/", "](")
    for name, site_name in ROOT_PAGES.items():
        markdown = markdown.replace(f"]({name}", f"]({site_name}")
    return re.sub(r"\[([^\]]+)\]\((?:LICENSE|README\.md|changelog\.d|src/[^)]*|tests/[^)]*)\)", r"\1", markdown)
