"""The dashboard in a browser: views, filters, links, live changes, keyboard."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Page, Route, expect

from tests.e2e.dashboard.conftest import MILLISECONDS_MAX, Open, apply
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server
from tests.unit.sim.cluster import GPU, device, exactly, resource_slice, taint_rule, template, waiting_pod

expect.set_options(timeout=MILLISECONDS_MAX)


def test_the_map_shows_every_device_with_its_state(address: str, open_page: Open) -> None:
    page = open_page(address)
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#who")).to_have_text("kubernetes-admin")
    node = page.get_by_label("Node sim-0")
    expect(node.locator(".dev.held")).to_have_count(1)
    expect(node.locator(".dev.free")).to_have_count(1)
    expect(node.locator(".dev.tainted")).to_have_accessible_name("gpu-2: tainted")
    assert "key=" not in page.url, "the key stays in no history"


def test_filters_show_matching_devices(address: str, open_page: Open) -> None:
    page = open_page(address)
    page.get_by_label("Class", exact=True).select_option("a100")
    expect(page.get_by_text("3 devices of 4 match")).to_be_visible()
    expect(page.get_by_label("Node sim-1")).to_have_count(0)
    page.get_by_label("State").select_option("free")
    expect(page.get_by_text("1 device of 4 match")).to_be_visible()
    page.get_by_label("Class", exact=True).select_option("")
    page.get_by_label("State").select_option("")
    page.get_by_label("Name or attribute").fill("model=t4")
    expect(page.get_by_text("1 device of 4 match")).to_be_visible()


def test_from_a_device_to_its_claim_to_its_pod(address: str, open_page: Open) -> None:
    page = open_page(address)
    page.locator(".map .dev.held").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gpu-")
    expect(page.get_by_text("a100", exact=True)).to_be_visible()
    page.get_by_role("link", name="team/worker-gpu").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("reserved")
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.get_by_text("Reserved for Pod worker")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="team/worker", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("team/worker")


def test_a_pending_pod_shows_reasons_and_suggestions(address: str, open_page: Open) -> None:
    page = open_page(address)
    page.get_by_role("link", name="Pods", exact=True).click()
    expect(page.get_by_text("not enough free devices").first).to_be_visible()
    page.get_by_role("link", name="team/hungry", exact=True).click()
    expect(page.get_by_text("0 of 2 nodes fit").first).to_be_visible()
    expect(page.get_by_text("lower the count of request gpu to").first).to_be_visible()


def test_changes_are_shown_immediately(address: str, open_page: Open, kubectl: Kubectl) -> None:
    page = open_page(address)
    expect(page.locator("#live")).to_have_text("live")
    extra = resource_slice("sim-1-more", GPU, device("new-0"), nodeName="sim-1")
    extra["spec"]["pool"]["name"] = "more"
    apply(kubectl, extra)
    new = page.get_by_label("new-0: free")
    expect(new).to_be_visible()
    apply(kubectl, template("t4", exactly(1, "device.driver == 'gpu.example.com'")), waiting_pod("late", "t4"))
    expect(page.locator(".map .dev.held")).to_have_count(2)
    kubectl("delete", "pod", "late", "--wait=true")
    expect(page.locator(".map .dev.held")).to_have_count(1)
    kubectl("delete", "resourceslice", "sim-1-more")
    expect(new).to_have_count(0)


def test_the_page_works_by_keyboard(address: str, open_page: Open) -> None:
    page = open_page(address)
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    first = page.locator(".map .dev").first
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map .dev").nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".map .dev").last).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Properties")).to_be_visible()


@pytest.mark.parametrize("width", [360, 768, 1920])
@pytest.mark.parametrize("view", ["", "claims", "pods", "namespaces", f"device/{GPU}/sim-0/gpu-0"])
def test_no_page_is_wider_than_the_screen(address: str, open_page: Open, width: int, view: str) -> None:
    page = open_page(address, width=width, bypass_csp=True)
    expect(page.locator("#live")).to_have_text("live")
    page.goto(f"{page.url.partition('#')[0]}#/{view}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_colour_the_states(address: str, open_page: Open, scheme: str) -> None:
    page = open_page(address, bypass_csp=True, color_scheme=scheme)
    colours = {
        state: page.locator(f".map .dev.{state}").first.evaluate("item => getComputedStyle(item).backgroundColor")
        for state in ("held", "free", "tainted")
    }
    assert len(set(colours.values())) == 3
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
    page.route("**/data/whoami", slowly)
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
    expect(page.locator("#live")).to_contain_text("not shown: Namespace, Node")
    expect(page.locator(".map .dev.free").first).to_be_visible()
    expect(page.locator(".map .dev.held")).to_have_count(0)
    assert "alice-token" not in page.url


def test_quotas_and_usage_by_namespace(address: str, open_page: Open, kubectl: Kubectl) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "team"},
        "spec": {"hard": {"gpu.deviceclass.resource.k8s.io/devices": "100"}},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    page = open_page(address)
    page.get_by_role("link", name="Namespaces").click()
    expect(page.get_by_role("cell", name="gpu.deviceclass.resource.k8s.io/devices")).to_be_visible()
    expect(page.get_by_text("of 100").first).to_be_visible()


def test_a_stream_that_fails_is_shown_and_reconnected(address: str, open_page: Open) -> None:
    page = open_page(address)
    expect(page.locator("#live")).to_have_text("live")
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
    page = open_page(address)
    expect(page.locator("#live")).to_have_text("live")
    node = page.get_by_label("Node sim-1")
    expect(node.locator(".dev.free")).to_have_count(1)
    expect(page.locator(".map .dev.held")).to_have_count(1)
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
