# SPDX-License-Identifier: Apache-2.0
"""What the tests of the page share: a browser, and how a person uses the page in it."""
import json

import pytest

import browser

needs_browser = pytest.mark.skipif(browser.find() is None, reason="no Chromium (CHROMIUM names one)")


@pytest.fixture
def page(tmp_path):
    b = browser.Browser(tmp_path / "profile")
    try:
        b.look(1280, 800)
        yield b
        told = b.complaints()
        assert not told, told
    finally:
        b.close()


def leave(page, *expected):
    """Before the server ends: the page would tell of that. `expected`: what it may have told so far."""
    page.open("about:blank")
    page.complaints()  # everything has arrived
    page.events = [e for e in page.events if not any(x in json.dumps(e) for x in expected)]


def ask(page, text):
    page.js("document.getElementById('prompt').focus()")
    page.type(text)
    page.key("Enter", "\r")


def press(page, text, of="document"):
    """The last button with this text."""
    page.js(f"[...{of}.querySelectorAll('button')].filter((b) => b.textContent === {json.dumps(text)}).at(-1).click()")


ANSWERS = "document.querySelectorAll('.msg.assistant:not(.busy)').length"
LAST = "[...document.querySelectorAll('.msg.assistant')].at(-1)"


def set_field(page, name, value):
    page.js(f"{{const e = document.getElementById('{name}'); e.value = {json.dumps(str(value))}; e.dispatchEvent(new Event('change')); 0}}")


# Answers every chat with these deltas, one in a frame, and keeps the bodies (window.bodies) and what the page shows
# before the end (window.live).
FAKE = """{
  const real = window.real = window.real || window.fetch;
  window.bodies = window.bodies || [];
  window.fetch = async (url, options) => {
    if (!url.endsWith("/v1/chat/completions")) return real(url, options);
    window.bodies.push(JSON.parse(options.body));
    const send = (o) => new TextEncoder().encode(`data: ${JSON.stringify(o)}\\n\\n`);
    const body = new ReadableStream({async start(c) {
      for (const delta of %s) {
        c.enqueue(send({choices: [{index: 0, delta}]}));
        await new Promise(requestAnimationFrame);
      }
      await new Promise((done) => setTimeout(done, 100));
      window.live = document.querySelector(".busy .text").cloneNode(true).outerHTML;
      c.enqueue(send({choices: [{index: 0, delta: {}, finish_reason: "stop"}], usage: {prompt_tokens: 40, completion_tokens: 2}}));
      c.close();
    }});
    return new Response(body, {headers: {"Content-Type": "text/event-stream"}});
  };
  0
}"""
