# SPDX-License-Identifier: Apache-2.0
"""The page brings models of a hub into the server, and removes them."""
from test_pull_api import NAME, children, folder, hub, names, serve, wait_for  # noqa: F401 (three are fixtures)
from test_pull_api import pytestmark as needs_hub
from ui import leave, needs_browser, page  # noqa: F401 (page is a fixture)

pytestmark = [needs_browser, needs_hub]


def test_the_page_adds_and_deletes_a_model(page, serve, hub):  # noqa: F811
    s = serve()
    hub.delay = 0.1
    texts = "[...document.querySelectorAll('#model option')].map((o) => o.value).join('|')"
    page.open(s.url("/"))
    page.wait("document.getElementById('model').value === 'first'")
    page.wait("!document.getElementById('add').hidden && document.getElementById('remove').hidden")
    page.js("document.getElementById('add').click()")
    page.js("document.getElementById('pull-name').focus()")
    page.type("org/none")
    page.key("Enter", "\r")
    page.wait("document.getElementById('pull-status').textContent.includes('org/none') && !document.getElementById('pull-go').disabled")
    page.js("window.bars = []; new MutationObserver(() => window.bars.push(document.getElementById('pull-bar').value))"
            ".observe(document.getElementById('pull-bar'), {attributes: true}); document.getElementById('pull-name').value = ''; 0")
    page.js("document.getElementById('pull-name').focus()")
    page.type(NAME)
    page.key("Enter", "\r")
    page.wait(f"document.getElementById('model').value === '{NAME}' && !document.getElementById('pull').open")
    assert page.js("Math.max(...window.bars)") == 1 and page.js(texts) == f"first|{NAME}"
    page.wait("!document.getElementById('remove').hidden")
    page.js("window.confirm = () => true; document.getElementById('remove').click()")
    page.wait(f"{texts} === 'first'")
    assert names(s) == ["first"]
    page.js("document.getElementById('add').click()")
    hub.delay = 30
    page.js("document.getElementById('pull-name').value = 'org/other'; document.getElementById('pull-go').click()")
    wait_for(lambda: children(s))
    page.js("document.getElementById('pull-close').click()")
    wait_for(lambda: not children(s))
    leave(page, "404")
