"""The overview looks as it did: pictures of fixed data, compared with stored ones.

Machines differ in fonts and anti-aliasing. Pictures are therefore compared without text, which takes no room either, so
that nothing depends on its width, and reduced to a grid of cells: a few may differ slightly, none much. After an
intended change, run `DRAY_PICTURES=write` and look at the new pictures.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Page, Route, expect

from dray.dashboard.assets import asset
from dray.dashboard.change_stream import columns_line, rows_line, synced_line
from dray.dashboard.cluster_view import KINDS, ClusterView
from tests.e2e.dashboard.conftest import MILLISECONDS_MAX, Open
from tests.unit.dashboard.test_cluster_view import claim, node, partitioned_slice, pod, put, refresh
from tests.unit.sim.cluster import GPU, device, device_class, resource_slice, taint_rule

PICTURES = Path(__file__).parent / "pictures"
ORIGIN = "http://dashboard.test"
CELLS = (64, 40)
# Of 255; a cell is the mean of some hundred pixels.
CELL_DIFFERENCE_MAX = 24
CELLS_DIFFERENT_SHARE_MAX = 0.01
CELL_SLIGHT = 8
# Text looks different everywhere; boxes of text would move others if their size depended on it. Lines stay as high.
PLAIN = """
* { animation: none !important; transition: none !important; caret-color: transparent !important; }
* { color: transparent !important; font: 0/20px monospace !important; letter-spacing: 0 !important; }
.bar { display: none !important; }
"""
# What `dray top fragmentation` would say.
HEADROOM = [
    {"requests": "1 gpu", "example": "team/waits", "pods": 1, "fit": 30, "atMost": 40},
    {"requests": "4 gpu", "example": "team/large", "pods": 2, "fit": 3, "atMost": 3},
]


def tables(nodes: int) -> bytes:
    """What the server sends for a cluster with so many nodes."""
    view = ClusterView()
    documents = [device_class("gpu", f'device.driver == "{GPU}"'), *partitioned_slice()["items"]]
    documents += [claim("half", "half"), claim("quarter", "q0"), node("a")]
    for number in range(nodes):
        name = f"node-{number:04}"
        documents += [node(name), resource_slice(name, GPU, *(device(f"gpu-{n}") for n in range(8)), nodeName=name)]
        used = [f"gpu-{n}" for n in range(8) if (number * 7 + n * 3) % 5 < 3]
        documents += [claim(f"{name}-{item}", item, pool=name) for item in used]
    documents += [taint_rule("rule", driver=GPU, pool="node-0001", device="gpu-2"), pod("waits")]
    for document in documents:
        put(view, None, document)
    refresh(view)
    lines = [columns_line()]
    lines += [rows_line(table, changed, removed) for table, (changed, removed) in view.changes().items()]
    return b"".join([*lines, *(synced_line(kind) for kind in KINDS)])


def serve(route: Route, body: bytes) -> None:
    path = route.request.url.removeprefix(f"{ORIGIN}/ui/").partition("?")[0]
    if path == "data/stream":
        route.fulfill(body=body, content_type="application/x-ndjson")
    elif path == "data/fragmentation":
        route.fulfill(body=json.dumps(HEADROOM), content_type="application/json")
    elif path == "data/whoami":
        route.fulfill(body=json.dumps({"user": {"username": "someone"}}), content_type="application/json")
    else:
        reply = asset(path)
        assert reply is not None, path
        route.fulfill(body=reply.body, content_type=reply.content_type)


def reduced(page: Page) -> Image.Image:
    shot = page.locator("main").screenshot(animations="disabled")
    return Image.open(io.BytesIO(shot)).convert("RGB").resize(CELLS, Image.Resampling.BOX)


# Larger clusters are counted only when the user asks for it.
LARGE = 60
CASES: dict[str, dict[str, Any]] = {
    "small-light": {"nodes": 3, "width": 1280, "color_scheme": "light"},
    "small-dark": {"nodes": 3, "width": 1280, "color_scheme": "dark"},
    "large-light": {"nodes": 400, "width": 1280, "color_scheme": "light"},
    "large-dark": {"nodes": 400, "width": 1280, "color_scheme": "dark"},
    "phone-light": {"nodes": 3, "width": 390, "color_scheme": "light"},
    "phone-dark": {"nodes": 3, "width": 390, "color_scheme": "dark"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_overview_looks_as_before(name: str, open_page: Open) -> None:
    case = dict(CASES[name])
    nodes = case.pop("nodes")
    body = tables(nodes)
    page = open_page("about:blank", bypass_csp=True, height=800, **case)
    page.route(f"{ORIGIN}/**", lambda route: serve(route, body))
    page.goto(f"{ORIGIN}/ui/")
    expect(page.locator(".stats")).to_contain_text("in use", timeout=MILLISECONDS_MAX)
    expect(page.get_by_role("link", name="team/waits")).to_be_visible(timeout=MILLISECONDS_MAX)
    if nodes < LARGE:
        expect(page.locator(".headroom-line")).to_have_count(len(HEADROOM), timeout=MILLISECONDS_MAX)
    page.add_style_tag(content=PLAIN)
    shown = reduced(page)
    stored = PICTURES / f"{name}.png"
    if os.environ.get("DRAY_PICTURES") == "write":
        PICTURES.mkdir(exist_ok=True)
        shown.save(stored, optimize=True)
    expected = Image.open(stored).convert("RGB")
    # Of each colour of each cell.
    differences = list(ImageChops.difference(shown, expected).tobytes())
    different = [item for item in differences if item > CELL_SLIGHT]
    assert max(differences) <= CELL_DIFFERENCE_MAX, f"{len(different)} values of {stored.name} differ"
    assert len(different) <= CELLS_DIFFERENT_SHARE_MAX * len(differences)
