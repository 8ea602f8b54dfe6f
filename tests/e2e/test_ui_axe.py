# SPDX-License-Identifier: Apache-2.0
"""Every view of the page against axe's rules of accessibility, the contrast of each text, and the width of the screen."""
import importlib.util
import json
import os
import pathlib

import pytest

from llm_server import Server
from test_pull_api import Hub, environment, folder  # noqa: F401 (folder is a fixture)
from test_pull_api import pytestmark as needs_hub
from ui import ANSWERS, FAKE, ask, leave, needs_browser, page, press, set_field  # noqa: F401 (page is a fixture)

pytestmark = [needs_browser, needs_hub]
PACKAGE = importlib.util.find_spec("axe_core_python")
AXE = os.environ.get("NEREID_AXE") or PACKAGE and pathlib.Path(PACKAGE.submodule_search_locations[0]) / "axe.min.js"

# Ratios of WCAG 2.1 (1.4.3) of every text that is seen against what lies behind it, without axe.
CONTRAST = """(() => {
  const parse = (s) => { const m = s.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (a, b) => a.slice(0, 3).map((v, i) => v * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (const chain = []; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); chain.push(c);
    if (c[3] === 1) return chain.reduceRight((below, x) => over(x, below)); } return [255, 255, 255, 1]; };
  const out = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.disabled || e.closest(".hidden, .skip, option")) continue;
    const back = behind(e), text = over(parse(getComputedStyle(e).color), back), a = light(text), b = light(back);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
  }
  return out;
})()"""


# Colours are measured above; axe before 4.5 does not know what is behind a dialog.
RULES = "{resultTypes: ['violations'], rules: {'color-contrast': {enabled: !axe.version.startsWith('4.4')}}}"
FOUND = f"axe.run(document, {RULES}).then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 120)).join(' | ')))"
CHAT = "# H\n\n- [x] a `b` [c](https://x.org)\n\n> q\n\n| a |\n|---|\n| 1 |\n\n$$x^2$$\n\n```c\nint f(int x) { return \"s\" + 1; } // c\n```\n"


@pytest.fixture(scope="module")
def several(folder, tmp_path_factory):  # noqa: F811
    """Two models, of which clients may bring more."""
    tmp_path = tmp_path_factory.mktemp("several")
    h = Hub({"org/tiny": {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}})
    s = Server(f"left={folder}", tmp_path, f"right={folder}", env=environment(h, tmp_path))
    try:
        body = {"model": "left", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert s.wait_ready().request("/v1/chat/completions", body)[0] == 200  # the live view has an engine then
        yield s
    finally:
        status = s.stop()
        h.close()
    assert status == 0


def show(page, panel, yes=True):
    button = {"sidebar": "show-list", "panel": "show-settings"}[panel]
    page.js(f"document.getElementById('{panel}').hidden === {json.dumps(yes)} && document.getElementById('{button}').click(), 1")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_it_can_be_read_and_used_by_all(page, several, dark, width):
    page.look(width, 800, dark=dark)
    page.open(several.url("/"))
    page.wait("document.getElementById('model').value && !document.getElementById('beside-row').hidden && !document.getElementById('add').hidden")
    if AXE:
        page.js(pathlib.Path(AXE).read_text() + ";0")

    def check(name):
        assert page.js(CONTRAST) == [], name
        assert page.js("document.documentElement.scrollWidth === innerWidth"), name
        if AXE:
            assert page.js(FOUND) == [], name

    check("nothing said yet")
    page.js(FAKE % json.dumps([{"reasoning_content": "hm"}, {"content": CHAT}]))
    ask(page, "hello")
    page.wait(f"{ANSWERS} === 1")
    page.js("for (const d of document.querySelectorAll('details')) d.open = true")
    check("chat")
    show(page, "sidebar")
    page.wait("document.querySelectorAll('#list .title').length")
    check("list")
    press(page, "Edit", "document.querySelector('.msg.user')")
    check("editing a message")
    page.key("Escape")
    show(page, "panel")
    page.js("document.getElementById('preset-save').click()")
    check("settings")
    show(page, "sidebar", False)
    show(page, "panel", False)

    page.js("document.getElementById('help').showModal()")
    check("help")
    page.js("document.getElementById('help').close(); document.getElementById('add').click()")
    check("the dialog that adds a model")
    page.js("document.getElementById('pull-name').value = 'org/none'; document.getElementById('pull-go').click()")
    page.wait("document.getElementById('pull-status').textContent.includes('org/none') && !document.getElementById('pull-go').disabled")
    check("a model that is not there")
    page.js("document.getElementById('pull-name').value = 'org/tiny'; document.getElementById('pull-go').click()")
    page.wait("document.getElementById('model').value === 'org/tiny' && !document.getElementById('pull').open")
    page.wait("!document.getElementById('remove').hidden && !document.getElementById('load').hidden")
    check("a model that can be deleted")

    set_field(page, "model", "left")
    set_field(page, "beside", "right")
    ask(page, "and you?")
    page.wait("document.querySelectorAll('.beside > .msg.assistant:not(.busy)').length === 2")
    check("two models")
    page.js("location.hash = 'live'")
    page.wait("document.querySelectorAll('#models tr').length && document.querySelectorAll('.legend').length")
    check("live")
    page.js("window.confirm = () => true; location.hash = 'chat'")
    set_field(page, "model", "org/tiny")
    page.js("document.getElementById('remove').click()")
    page.wait("![...document.querySelectorAll('#model option')].some((o) => o.value === 'org/tiny')")
    leave(page, "404")
