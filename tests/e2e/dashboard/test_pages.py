"""The dashboard in a browser: views, filters, links, live changes, search, keyboard, actions."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageChops
from playwright.sync_api import Page, Route, expect

from dray.dashboard.rows import CARD_COLUMNS, COLUMNS
from tests.e2e.dashboard.conftest import MILLISECONDS_MAX, Open, apply, quota
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server
from tests.unit.sim.cluster import GPU, device, exactly, resource_slice, taint_rule, template, waiting_pod

expect.set_options(timeout=MILLISECONDS_MAX)
PAGES = [
    "",
    "nodes",
    "node/sim-0",
    f"device/{GPU}/sim-0/gpu-0",
    "claims",
    "claim/team/worker-gpu",
    "pods",
    "pods?by=workloads",
    "pod/team/hungry",
    "workload/ReplicaSet/team/none",
    "namespaces",
    "quota/team/gpus",
    "decisions",
    "timeline",
]


def goto(page: Page, view: str) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/{view}")


def opened(open_page: Open, address: str, view: str = "", **options: object) -> Page:
    page = open_page(address, **options)
    expect(page.locator("#live")).to_have_text("live")
    if view:
        goto(page, view)
    return page


def test_the_overview_shows_every_device_with_its_state(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    expect(page.locator("#who")).to_have_text("kubernetes-admin")
    node = page.get_by_label("Node sim-0")
    expect(node.locator(".dev.used")).to_have_count(1)
    expect(node.locator(".dev.free")).to_have_count(1)
    expect(node.locator(".dev.tainted")).to_have_accessible_name("gpu-2: tainted, a100")
    # As `dray top` counts: one of four physical devices.
    expect(page.locator(".stats")).to_contain_text("25 %")
    expect(page.get_by_role("link", name="team/hungry")).to_be_visible()
    expect(page.locator(".lines .why").first).to_contain_text("not enough free devices")
    expect(page.get_by_text("Nothing is broken.")).to_be_visible()
    assert "key=" not in page.url, "the key stays in no history"


@pytest.mark.behaviour("TT-15")
def test_the_overview_counts_as_top_does(address: str, open_page: Open, server: Server, kubectl: Kubectl) -> None:
    """What is free on a cordoned node is of no use to a new Pod."""

    def numbers() -> dict[str, int]:
        command = [sys.executable, "-m", "dray", "top", "classes", "-o", "json"]
        environment = {**os.environ, **server.environment}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        rows = {row["name"]: row for row in json.loads(done.stdout)["items"]}
        return {"free for new Pods": rows["gpu"]["free"], "unavailable to new Pods": rows["gpu"]["out"]}

    page = opened(open_page, address)
    before = numbers()
    for text, count in before.items():
        expect(page.locator(".stats")).to_contain_text(f"{count}{text}")
    kubectl("cordon", "sim-1")
    try:
        after = numbers()
        assert after != before
        for text, count in after.items():
            expect(page.locator(".stats")).to_contain_text(f"{count}{text}")
        expect(page.get_by_label("Node sim-1")).to_contain_text("cordoned")
    finally:
        kubectl("uncordon", "sim-1")


def test_filters_are_in_the_address(address: str, open_page: Open) -> None:
    page = opened(open_page, address, "pods")
    expect(page.get_by_text("2 Pods")).to_be_visible()
    page.get_by_label("State").select_option("pending")
    expect(page.get_by_text("1 of 2 Pods")).to_be_visible()
    page.get_by_label("Name, node or reason").fill("nobody")
    expect(page.get_by_text("0 of 2 Pods")).to_be_visible()
    assert page.url.endswith("#/pods?state=pending&q=nobody")
    goto(page, "pods?state=running")
    expect(page.get_by_role("link", name="team/worker", exact=True)).to_be_visible()
    expect(page.get_by_label("State")).to_have_value("running")
    goto(page, "nodes?class=a100")
    expect(page.get_by_text("1 of 2 nodes")).to_be_visible()


def test_from_a_device_to_its_claim_to_its_pod(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    page.locator(".map .dev.used").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gpu-")
    expect(page.get_by_text("a100", exact=True)).to_be_visible()
    page.get_by_role("link", name="team/worker-gpu").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("reserved")
    expect(page.get_by_text("Reserved for Pod worker")).to_be_visible()
    page.get_by_role("link", name="team/worker", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("team/worker")


def test_a_pending_pod_shows_reasons_and_suggestions(address: str, open_page: Open) -> None:
    page = opened(open_page, address, "pods")
    expect(page.get_by_text("not enough free devices").first).to_be_visible()
    page.get_by_role("link", name="team/hungry", exact=True).click()
    expect(page.get_by_text("0 of 2 nodes fit").first).to_be_visible()
    expect(page.get_by_text("lower the count of request gpu to").first).to_be_visible()


def test_decisions_show_scores_and_reasons(address: str, open_page: Open) -> None:
    page = opened(open_page, address, "decisions")
    row = page.get_by_role("row").filter(has_text="team/hungry")
    expect(row).to_contain_text("unschedulable")
    expect(row).to_contain_text("not enough free devices")
    page.get_by_label("Result", exact=True).select_option("Scheduled")
    page.get_by_role("link", name="team/worker", exact=True).click()
    card = page.locator(".card").filter(has=page.get_by_role("heading", name="Decisions"))
    expect(card).to_contain_text("attempt")
    expect(card).to_contain_text("sim-0")


def test_search_finds_nodes_pods_claims_and_devices(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Search")
    expect(field).to_be_focused()
    # Generated names can contain "t4", but no 0.
    field.fill("t4-0")
    expect(page.get_by_role("option")).to_have_count(1)
    field.fill("hungry")
    expect(page.get_by_role("option").first).to_contain_text("team/hungry")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("team/hungry")
    # Of every kind something, and how much more there is.
    page.keyboard.press("/")
    field.fill("sim-")
    expect(page.get_by_role("option").filter(has_text="Node")).to_have_count(2)
    expect(page.get_by_role("option").filter(has_text="Device")).not_to_have_count(0)


def test_changes_are_shown_immediately(address: str, open_page: Open, kubectl: Kubectl) -> None:
    page = opened(open_page, address)
    extra = resource_slice("sim-1-more", GPU, device("new-0"), nodeName="sim-1")
    extra["spec"]["pool"]["name"] = "more"
    apply(kubectl, extra)
    new = page.get_by_label("new-0: free")
    expect(new).to_be_visible()
    apply(kubectl, template("t4", exactly(1, "device.driver == 'gpu.example.com'")), waiting_pod("late", "t4"))
    expect(page.locator(".map .dev.used")).to_have_count(2)
    kubectl("delete", "pod", "late", "--wait=true")
    expect(page.locator(".map .dev.used")).to_have_count(1)
    kubectl("delete", "resourceslice", "sim-1-more")
    expect(new).to_have_count(0)


def test_the_page_works_by_keyboard(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    tiles = page.locator(".map a.dev")
    assert tiles.evaluate_all("items => items.filter((item) => item.tabIndex === 0).length") == 1, "one tab stop"
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tiles.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(tiles.last).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Properties")).to_be_visible()
    goto(page, "pods")
    page.get_by_role("link", name="team/hungry", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="team/worker", exact=True)).to_be_focused()


def test_what_if_a_node_is_drained_or_two_are_added(address: str, open_page: Open, kubectl: Kubectl) -> None:
    page = opened(open_page, address, "node/sim-0")
    page.get_by_role("button", name="What if I drain it?").click()
    expect(page.get_by_role("dialog")).to_contain_text("Lost, because no controller recreates them")
    expect(page.get_by_role("dialog")).to_contain_text("team/worker")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="What if I add more like it?").click()
    page.get_by_label("Number of nodes to add").fill("2")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("dialog")).to_contain_text("unchanged")
    assert "worker" in kubectl("get", "pods", "-o", "name"), "nothing happened"


def test_an_action_is_confirmed_and_done_with_the_users_permissions(
    address: str, server: Server, open_page: Open, kubectl: Kubectl
) -> None:
    page = opened(open_page, address, "node/sim-1")
    page.get_by_role("button", name="Cordon", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cordon", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cordon").click()
    expect(page.get_by_text("Node sim-1 cordoned")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text("cordoned")
    page.get_by_role("button", name="Uncordon").click()
    page.get_by_role("dialog").get_by_role("button", name="Uncordon").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("ready")
    kubectl("create", "clusterrole", "readers", "--verb=get,list,watch", "--resource=nodes,pods")
    kubectl("create", "clusterrolebinding", "readers", "--clusterrole=readers", "--user=bob")
    reader = open_page(f"{server.url}/ui/#token=bob-token")
    expect(reader.locator("#who")).to_have_text("bob")
    goto(reader, "node/sim-1")
    expect(reader.get_by_role("button", name="What if I drain it?")).to_be_visible()
    expect(reader.get_by_role("button", name="Cordon", exact=True)).to_have_count(0)


def confirm(page: Page, action: str) -> None:
    page.get_by_role("button", name=action, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


def test_actions_on_a_device_a_pod_and_a_claim(address: str, open_page: Open, kubectl: Kubectl) -> None:
    apply(kubectl, template("spare", exactly(1)), waiting_pod("victim", "spare"), waiting_pod("other", "spare"))
    kubectl("wait", "--for=condition=PodScheduled", "pod/victim", "pod/other", "--timeout=30s")
    page = opened(open_page, address, "pod/team/victim")
    confirm(page, "Evict")
    expect(page.get_by_text("Pod team/victim evicted")).to_be_visible()
    goto(page, "pod/team/other")
    confirm(page, "Delete")
    expect(page.get_by_text("Pod team/other deleted")).to_be_visible()
    kubectl("wait", "--for=delete", "pod/victim", "pod/other", "--timeout=30s")
    claim = {"devices": {"requests": [exactly(1)]}}
    metadata = {"name": "unused", "namespace": "team"}
    apply(kubectl, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": claim})
    goto(page, "claim/team/unused")
    confirm(page, "Delete")
    expect(page.get_by_text("ResourceClaim team/unused deleted")).to_be_visible()
    goto(page, f"device/{GPU}/sim-1/t4-0")
    confirm(page, "Taint")
    expect(page.get_by_role("heading", level=1)).to_contain_text("tainted")
    expect(page.get_by_text("example.com/maintenance:NoSchedule")).not_to_have_count(0)
    confirm(page, "Remove taint")
    expect(page.get_by_role("heading", level=1)).to_contain_text("free")
    names = kubectl("get", "pods,resourceclaims,devicetaintrules", "-o", "name").split()
    assert not [name for name in names if "victim" in name or "unused" in name or "dashboard-" in name]


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_no_page_is_wider_than_the_screen(address: str, open_page: Open, width: int) -> None:
    page = opened(open_page, address, width=width, bypass_csp=True)
    for view in PAGES:
        goto(page, view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_lists_on_a_phone_show_whole_names_and_reasons(address: str, open_page: Open) -> None:
    page = opened(open_page, address, "pods", width=390)
    row = page.get_by_role("row").filter(has_text="team/hungry")
    expect(row).to_contain_text("not enough free devices")
    expect(row.get_by_role("cell")).to_have_count(4)
    name, reason = row.get_by_role("link").bounding_box(), row.locator(".detail").bounding_box()
    assert name is not None
    assert reason is not None
    assert reason["y"] >= name["y"] + name["height"] - 1, "below the name"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_violates_an_accessibility_rule(address: str, open_page: Open, scheme: str) -> None:
    page = opened(open_page, address, bypass_csp=True, color_scheme=scheme)
    found = {}
    for view in PAGES:
        goto(page, view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Running dray explain…")).to_have_count(0)
        violations = Axe().run(page).response["violations"]
        found[view] = [(item["id"], [node["html"][:200] for node in item["nodes"]]) for item in violations]
    assert found == {view: [] for view in PAGES}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_colour_the_states(address: str, open_page: Open, scheme: str) -> None:
    page = opened(open_page, address, bypass_csp=True, color_scheme=scheme)
    parts = {"used": ".map .dev.used i", "free": ".map .dev.free"}
    colours = {
        state: page.locator(place).first.evaluate("item => getComputedStyle(item).backgroundColor")
        for state, place in parts.items()
    }
    assert len(set(colours.values())) == 2
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    light = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")) > 3 * 128
    assert light is (scheme == "light")


# --- The page served by the API server. ---


def slowly(route: Route) -> None:
    route.request.frame.page.wait_for_timeout(300)
    route.continue_()


def test_without_credentials_there_is_only_a_form(server: Server, kubectl: Kubectl, open_page: Open) -> None:
    page = open_page(f"{server.url}/ui")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    # A slow response: the form accepts no input until it arrives, because it would be lost.
    page.route("**/data/whoami*", slowly)
    field, button = page.get_by_label("Bearer token"), page.get_by_role("button", name="Sign in")
    field.fill("wrong")
    button.click()
    field.fill("admin-token")
    expect(page.get_by_role("alert")).to_have_text("The token is not valid.")
    button.click()
    expect(page.locator("#who")).to_have_text("admin")
    expect(page.get_by_label("Node sim-0")).to_be_visible()


def test_users_see_only_what_they_can_read(server: Server, kubectl: Kubectl, open_page: Open) -> None:
    kubectl("create", "clusterrole", "devices", "--verb=get,list,watch", "--resource=resourceslices.resource.k8s.io")
    kubectl("create", "clusterrolebinding", "devices", "--clusterrole=devices", "--user=alice")
    page = open_page(f"{server.url}/ui/#token=alice-token")
    expect(page.locator("#who")).to_have_text("alice")
    expect(page.locator("#live")).to_contain_text(re.compile("not shown: .*Node, Pod"))
    expect(page.locator(".map .dev.free").first).to_be_visible()
    expect(page.locator(".map .dev.used")).to_have_count(0)
    assert "alice-token" not in page.url


def test_what_if_a_quota_is_raised(address: str, server: Server, open_page: Open, kubectl: Kubectl) -> None:
    page = opened(open_page, address, "namespaces")
    expect(page.get_by_text("gpu devices")).to_be_visible()
    expect(page.get_by_text("of 100").first).to_be_visible()
    kubectl("create", "namespace", "limited")
    pods = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": pods}
    metadata = {"name": "web", "namespace": "limited"}
    web: dict[str, object] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    limited = Kubectl(server.environment, "limited")
    apply(limited, quota("pods", "limited", {"pods": "0"}))
    limited("wait", "--for=jsonpath={.status.hard.pods}=0", "quota/pods", "--timeout=30s")
    apply(limited, web)
    try:
        page.get_by_role("link", name="limited/pods").click()
        expect(page.get_by_text("exceeds quota pods: 0 of 0 pods in use, 1 requested")).to_be_visible()
        page.get_by_role("button", name="What if I raise it?").click()
        page.get_by_label("Limit of pods").fill("many")
        page.get_by_role("button", name="Simulate").click()
        expect(page.get_by_role("dialog")).to_contain_text("limit must be a quantity")
        page.get_by_label("Limit of pods").fill("5")
        page.get_by_role("button", name="Simulate").click()
        expect(page.get_by_role("dialog")).to_contain_text("2 Pods scheduled")
        assert limited("get", "pods", "-o", "name") == "", "nothing happened"
    finally:
        kubectl("delete", "namespace", "limited", "--wait=false")


def test_devices_are_shown_while_claims_are_still_listed(address: str, open_page: Open) -> None:
    columns = {"type": "COLUMNS", "tables": COLUMNS, "cards": CARD_COLUMNS, "states": {"l": "loading"}}
    shape = [["gpu-0", ["gpu"], "a100", 1], ["gpu-1", ["gpu"], "a100", 1]]
    pool = [GPU, "sim-0", "sim-0", ["slice"], 1, "ll", {}, {}, {}]
    lines = [
        columns,
        {"type": "ROWS", "table": "shapes", "rows": {"1": [shape]}, "removed": []},
        {"type": "ROWS", "table": "pools", "rows": {f"{GPU}/sim-0": pool}, "removed": []},
        *({"type": "SYNCED", "kind": kind} for kind in ("DeviceClass", "ResourceSlice", "Node")),
    ]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page = open_page("about:blank")
    page.route("**/data/stream", lambda route: route.fulfill(status=200, body=body))
    page.goto(address)
    expect(page.locator(".map .dev.loading")).to_have_count(2)
    expect(page.locator(".stats")).to_contain_text("of 2 physical devices")
    expect(page.locator(".stats b").first).to_have_text("…", use_inner_text=True)
    for name in ("Waiting", "Broken"):
        card = page.locator(".card").filter(has=page.get_by_role("heading", name=name))
        expect(card, "Pods are not listed yet").to_contain_text("Loading…")


def test_the_overview_counts_what_more_fits(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    headroom = page.locator(".card").filter(has=page.get_by_role("heading", name="Headroom"))
    expect(headroom).to_contain_text("as team/")
    expect(headroom.get_by_role("img").first).to_have_accessible_name(re.compile(r"\d+ (more Pods? fit|of \d+)"))


def test_a_stream_that_fails_is_shown_and_reconnected(address: str, open_page: Open) -> None:
    page = opened(open_page, address)
    error = {"type": "ERROR", "message": "watching the cluster failed"}
    page.route("**/data/stream", lambda route: route.fulfill(status=200, body=json.dumps(error) + "\n"))
    page.reload()
    expect(page.locator("#live")).to_have_text("disconnected: watching the cluster failed")
    page.unroute("**/data/stream")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_label("Node sim-0")).to_be_visible()


# --- Appearance. ---


def picture(page: Page) -> Image.Image:
    """The map without animations."""
    shot = page.locator(".map").screenshot(animations="disabled", caret="hide")
    return Image.open(io.BytesIO(shot)).convert("RGB")


def difference(one: Image.Image, other: Image.Image) -> tuple[int, int, int, int] | None:
    """The bounding box of the differences, apart from anti-aliasing."""
    return ImageChops.difference(one, other).convert("L").point(lambda value: 255 * (value > 48)).getbbox()


def test_a_change_redraws_only_its_device(address: str, open_page: Open, kubectl: Kubectl) -> None:
    page = opened(open_page, address)
    node = page.get_by_label("Node sim-1")
    expect(node.locator(".dev.free")).to_have_count(1)
    expect(page.locator(".map .dev.used")).to_have_count(1)
    expect(page.locator(".map .dev.tainted")).to_have_count(1)
    before = picture(page)
    assert difference(before, picture(page)) is None, "the same looks the same"
    apply(kubectl, taint_rule("paint", driver=GPU, pool="sim-1", device="t4-0"))
    expect(node.locator(".dev.tainted")).to_have_count(1)
    changed = difference(before, picture(page))
    assert changed is not None
    grid, square = page.locator(".map").bounding_box(), node.locator(".dev").bounding_box()
    assert grid is not None
    assert square is not None
    left, top = square["x"] - grid["x"], square["y"] - grid["y"]
    # Edges between two pixels are drawn in both.
    assert left - 2 <= changed[0] < changed[2] <= left + square["width"] + 2
    assert top - 2 <= changed[1] < changed[3] <= top + square["height"] + 2
    kubectl("delete", "devicetaintrule", "paint")
    expect(node.locator(".dev.free")).to_have_count(1)
    assert difference(before, picture(page)) is None, "and back again"
