# SPDX-License-Identifier: Apache-2.0
"""What people keep the page open for, in a browser: conversations, branches, files, schemas, tools, two models, keys."""
import base64
import http.client
import http.server
import json
import struct
import sys
import threading
import time
import zlib

from llm_server import ROOT, Server
from ui import ANSWERS, FAKE, LAST, ask, leave, needs_browser, page, press, set_field  # noqa: F401 (page is a fixture)

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import vision  # noqa: E402

pytestmark = needs_browser
TITLES = "[...document.querySelectorAll('#list .title')].map((e) => e.textContent)"
TEXTS = "[...document.querySelectorAll('.msg .text')].map((e) => e.textContent)"


def start(page, server, **settings):
    page.open(server.url("/"))
    page.wait("document.getElementById('model').value")
    for name, value in settings.items():
        set_field(page, name, value)


def says(page, *texts):
    """Answers from now on with this text, piece by piece."""
    page.js(FAKE % json.dumps([{"content": t} for t in texts]))


def answered(page, n):
    page.wait(f"!document.querySelectorAll('.busy').length && {ANSWERS} === {n}")


def bodies(page):
    return page.js("window.bodies")


def give(page, field, name, content, kind=""):
    """A file for a field of the page: a text, or bytes."""
    data = json.dumps(content) if isinstance(content, str) else f"new Uint8Array({json.dumps(list(content))})"
    page.js(f"{{const d = new DataTransfer(); d.items.add(new File([{data}], {json.dumps(name)}, {{type: {json.dumps(kind)}}}));"
            f"const f = document.getElementById('{field}'); f.files = d.files; f.dispatchEvent(new Event('change')); 0}}")


# ---- conversations ----

def test_conversations_are_kept_found_renamed_and_deleted(page, server):
    start(page, server)
    says(page, "the ", "first")
    ask(page, "About whales")
    answered(page, 1)
    page.js("document.getElementById('new').click()")
    assert page.js(TEXTS) == []
    ask(page, "About <b>ships</b>")
    answered(page, 1)
    page.wait(f"{TITLES}.length === 2")

    start(page, server)  # the page is opened anew
    page.wait(f"{TITLES}.length === 2")
    assert page.js(TITLES) == ["About <b>ships</b>", "About whales"]
    assert page.js("document.querySelector('#list b')") is None
    page.js("document.querySelectorAll('#list .title')[1].click()")
    page.wait(f"{TEXTS}.length === 2")
    assert page.js(TEXTS) == ["About whales", "the first"]
    assert page.js("document.title") == "About whales – Nereid"

    page.key("k", ctrl=True)
    page.type("WHALES")
    page.wait(f"{TITLES}.length === 1")
    page.js("{const s = document.getElementById('search'); s.value = 'the first'; s.dispatchEvent(new Event('input')); 0}")
    page.wait(f"{TITLES}.length === 2")  # found in the text
    page.js("{const s = document.getElementById('search'); s.value = 'nothing like it'; s.dispatchEvent(new Event('input')); 0}")
    page.wait(f"{TITLES}.length === 0")
    page.js("{const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); 0}")
    page.wait(f"{TITLES}.length === 2")

    page.js("document.querySelector('[aria-label=\"Rename About whales\"]').click()")
    page.wait("document.activeElement.matches('#list input')")
    page.type("Sea")
    page.key("Enter", "\r")
    page.wait(f"{TITLES}.includes('Sea')")
    page.call("Runtime.evaluate", expression="setTimeout(() => document.querySelector('[aria-label=\"Delete Sea\"]').click())")
    page.wait(f"{TITLES}.length === 1")
    assert page.js(TEXTS) == []  # it was shown
    start(page, server)
    page.wait(f"{TITLES}.length === 1")
    page.call("Runtime.evaluate", expression="setTimeout(() => document.getElementById('clear').click())")
    page.wait(f"{TITLES}.length === 0")


def test_what_is_exported_can_be_imported(page, server, tmp_path):
    start(page, server)
    says(page, "an answer")
    ask(page, "keep me")
    answered(page, 1)
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.js("document.getElementById('export').click()")
    end = time.monotonic() + 60
    while not (files := list(tmp_path.glob("nereid-*.json"))):
        assert time.monotonic() < end
        time.sleep(0.05)
    doc = json.loads(files[0].read_text())
    assert doc["format"] == "nereid-conversations" and [c["title"] for c in doc["conversations"]] == ["keep me"]

    note = "document.getElementById('list-note').textContent"
    give(page, "import-file", "same.json", files[0].read_text())
    page.wait(f"{note}.includes('0 conversations were imported. 1 was here already.')")
    page.call("Runtime.evaluate", expression="setTimeout(() => document.getElementById('clear').click())")
    page.wait(f"{TITLES}.length === 0")
    give(page, "import-file", "back.json", files[0].read_text())
    page.wait(f"{TITLES}.length === 1")
    page.wait(f"{note} === '1 conversation was imported.'")
    page.js("document.querySelector('#list .title').click()")
    page.wait(f"{TEXTS}.length === 2")
    assert page.js("document.getElementById('list-note').hidden")  # it was read
    give(page, "import-file", "bad.json", '{"conversations": [{"nodes": {"1": {"id": 1, "parent": 0, "role": "robot"}}}]}')
    page.wait(f"{note} === 'Nothing was imported from bad.json: conversation 1: message 1: unknown role'")


def test_imported_text_is_only_text(page, server):
    evil = "<img src=x onerror='window.broken=1'> [a](javascript:window.broken=1) ![p](https://nowhere.invalid/p.png) `</code><script>window.broken=1</script>`"
    start(page, server)
    give(page, "import-file", "evil.json", json.dumps([{"role": "user", "content": evil}, {"role": "assistant", "content": evil}]))
    page.wait(f"{TITLES}.length === 1")
    page.js("document.querySelector('#list .title').click()")
    page.wait(f"{TEXTS}.length === 2")
    assert page.js("document.querySelectorAll('#log img, #log script, #list img').length") == 0
    assert page.js("[...document.querySelectorAll('#log a')].map((a) => a.protocol)") == ["https:"]
    assert page.js("window.broken") is None


def test_an_edited_question_is_a_branch(page, server):
    start(page, server)
    says(page, "one")
    ask(page, "first question")
    answered(page, 1)
    says(page, "two")
    press(page, "Edit", "document.querySelector('.msg.user')")
    page.js("document.activeElement.value = 'second question'")
    page.key("Enter", "\r")
    page.wait(f"{TEXTS}.join('|') === 'second question|two'")
    answered(page, 1)
    assert page.js("document.querySelector('.msg.user .branches').textContent") == "‹2/2›"
    page.js("document.querySelector('[aria-label=\"The version before\"]').click()")
    assert page.js(TEXTS) == ["first question", "one"]
    assert bodies(page)[-1]["messages"] == [{"role": "user", "content": "second question"}]

    says(page, "three")
    press(page, "Answer again")
    answered(page, 1)
    page.wait(f"{TEXTS}.join('|') === 'first question|three'")
    press(page, "Edit", LAST)
    page.js("document.activeElement.value = 'mine'")
    press(page, "Save", LAST)
    assert page.js(TEXTS) == ["first question", "mine"]
    assert page.js(f"{LAST}.querySelector('.branches').textContent") == "‹3/3›"
    press(page, "Delete", LAST)
    assert page.js(TEXTS) == ["first question", "three"]


def test_an_earlier_answer_is_asked_again(page, server):
    start(page, server)
    for i, text in enumerate(("one", "two")):
        says(page, text)
        ask(page, f"question {text}")
        answered(page, i + 1)
    says(page, "three")
    press(page, "Answer again", "document.querySelector('.msg.assistant')")
    page.wait(f"{TEXTS}.join('|') === 'question one|three'")
    answered(page, 1)
    assert bodies(page)[-1]["messages"] == [{"role": "user", "content": "question one"}]
    page.js("document.querySelector('[aria-label=\"The version before\"]').click()")
    assert page.js(TEXTS) == ["question one", "one", "question two", "two"]  # what followed it is still there


def test_an_answer_goes_on(page, server):
    start(page, server, max_tokens=8, temperature=0)
    ask(page, "the quick brown fox")
    answered(page, 1)
    first = page.js(f"{LAST}.querySelector('.text').textContent")
    press(page, "Continue")
    page.wait(f"!document.querySelectorAll('.busy').length && {LAST}.querySelector('.text').textContent.length > {len(first)}")
    more = page.js(f"{LAST}.querySelector('.text').textContent")
    assert more.startswith(first[:-1]) and page.js(f"{ANSWERS}") == 1


def test_a_failed_question_can_be_asked_again(page, server):
    start(page, server, temperature=99)
    ask(page, "hello")
    page.wait("!document.getElementById('chat-error').hidden")
    assert "temperature" in page.js("document.getElementById('chat-error').textContent")
    assert page.js(TEXTS) == ["hello"]
    set_field(page, "temperature", "")
    set_field(page, "max_tokens", 4)
    press(page, "Answer")
    answered(page, 1)
    page.complaints()
    page.events = [e for e in page.events if "400" not in json.dumps(e)]  # the browser tells of the refusal


def test_a_phone_has_all_of_it(page, server):
    """What has no place beside the chat lies above it, one at a time, and goes when it was used."""
    page.look(390, 780)
    start(page, server)
    hidden = "['sidebar', 'panel'].map((id) => document.getElementById(id).hidden)"
    assert page.js(hidden) == [True, True]
    for i, text in enumerate(("whales", "ships")):
        says(page, f"of {text}")
        ask(page, text)
        answered(page, 1)
        page.js("document.getElementById('show-list').click()")
        page.wait(f"{TITLES}.length === {i + 1}")
        assert page.js(hidden) == [False, True]
        if i == 0:
            page.js("document.getElementById('new').click()")
            assert page.js(hidden) == [True, True] and page.js(TEXTS) == []
    page.js("document.querySelectorAll('#list .title')[1].click()")
    page.wait(f"{TEXTS}.join('|') === 'whales|of whales'")
    assert page.js(hidden) == [True, True]
    page.js("document.getElementById('show-settings').click()")
    assert page.js(hidden) == [True, False]
    inside = "(id) => { const r = document.getElementById(id).getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.width > 60; }"
    assert page.js(f"['temperature', 'top_p', 'theme', 'language'].every({inside})")
    page.key("Escape")
    assert page.js(hidden) == [True, True]
    assert page.js(f"['model', 'prompt', 'send', 'attach'].every((id) => {{ const r = document.getElementById(id).getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.bottom <= innerHeight; }})")


# ---- what is asked ----

def test_files_go_before_the_question(page, server):
    start(page, server)
    says(page, "ok")
    give(page, "attach-files", "notes.md", "a\n```\nb\n```\n")
    page.wait("document.querySelectorAll('#files li').length === 1")
    ask(page, "what is in it?")
    answered(page, 1)
    assert bodies(page)[0]["messages"] == [{"role": "user", "content": "notes.md:\n````\na\n```\nb\n```\n\n````\n\nwhat is in it?"}]
    assert page.js("document.querySelector('.msg.user summary').textContent").startswith("notes.md (")
    assert page.js("document.getElementById('files').hidden")
    page.js("{const d = new DataTransfer(); d.items.add(new File([new Uint8Array([0xff, 0])], 'x.bin'));"
            "const f = document.getElementById('attach-files'); f.files = d.files; f.dispatchEvent(new Event('change')); 0}")
    page.wait("document.getElementById('chat-error').textContent === 'x.bin is not a text file in UTF-8.'")


def pdf(content):
    """A page with this content."""
    objects = ["<</Type/Catalog/Pages 2 0 R>>", "<</Kids[3 0 R]/Count 1>>",
               "<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F<</Subtype/Type1/BaseFont/Helvetica>>>>>>>>"]
    packed = zlib.compress(content.encode())
    body = "".join(f"{i} 0 obj\n{o}\nendobj\n" for i, o in enumerate(objects, 1)).encode()
    return (b"%PDF-1.4\n" + body + b"4 0 obj\n<</Filter/FlateDecode/Length %d>>\nstream\n%s\nendstream\nendobj\n"
            % (len(packed), packed) + b"trailer <</Root 1 0 R>>\n%%EOF\n")


def test_the_text_of_a_pdf_is_attached(page, server):
    start(page, server)
    says(page, "ok")
    give(page, "attach-files", "scan.pdf", pdf("q /Im Do Q"))
    page.wait("document.getElementById('chat-error').textContent === "
              "'The text of scan.pdf could not be read: it has no text, only pictures of pages.'")
    give(page, "attach-files", "paper.pdf", pdf("BT /F 10 Tf (Of) Tj 30 0 Td (cats) Tj ET"), "application/pdf")
    page.wait("document.querySelectorAll('#files li').length === 1 && !document.getElementById('send').disabled")
    assert page.js("document.getElementById('chat-error').hidden")
    ask(page, "what is in it?")
    answered(page, 1)
    assert bodies(page)[0]["messages"] == [{"role": "user", "content": "paper.pdf:\n```\nOf cats\n```\n\nwhat is in it?"}]
    give(page, "attach-files", "dot.png", png(2, 2), "image/png")
    page.wait("document.getElementById('chat-error').textContent === 'dot.png is a picture, and this model takes text alone.'")


def png(width, height):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    rows = (b"\0" + b"\x20\x60\xa0" * width) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def test_pictures_are_attached_for_models_that_see(page, tmp_path):
    vision.write_folder(tmp_path / "llava")
    server = Server(tmp_path / "llava", tmp_path).wait_ready()
    try:
        start(page, server, max_tokens=2)
        small = png(3, 2)
        give(page, "attach-files", "small.png", small, "image/png")
        page.wait("document.querySelectorAll('#files li img').length === 1")
        ask(page, "what is it?")
        answered(page, 1)  # the server took it
        assert page.js("document.getElementById('chat-error').hidden")
        says(page, "ok")
        give(page, "attach-files", "large.png", png(3000, 30), "image/png")
        page.wait("document.querySelectorAll('#files li img').length === 1")
        ask(page, "and this?")
        answered(page, 2)
        first, _, second = bodies(page)[0]["messages"]
        url = f"data:image/png;base64,{base64.b64encode(small).decode()}"
        assert first["content"] == [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
        assert second["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
        page.wait("[...document.querySelectorAll('.msg.user img')].filter((i) => i.complete).length === 2")  # drawn later than put there
        assert page.js("[...document.querySelectorAll('.msg.user img')].map((i) => [i.alt, i.naturalWidth])") == [["small.png", 3], ["large.png", 2048]]
        page.open(server.url("/"))  # they are kept
        page.wait(f"{TITLES}.length === 1")
        press(page, "what is it?")
        page.wait("document.querySelectorAll('.msg.user img').length === 2")
        leave(page)
    finally:
        server.stop()


def test_settings_are_sent_and_presets_kept(page, server):
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3,
              "frequency_penalty": 0.4, "max_tokens": 9, "min_tokens": 2, "seed": 11, "max_time": 30}
    others = {"logit_bias": {"5": -1}, "bad_words": ["no"], "ignore_eos": True}
    start(page, server, **values, system="Be brief.", stop_words="END\n###", thinking="off", others=json.dumps({**others, "top_k": 3}))
    page.js("document.getElementById('preset-save').click()")
    page.type("mine")
    page.key("Enter", "\r")
    page.js("document.getElementById('defaults').click()")
    says(page, "a")
    ask(page, "one")
    answered(page, 1)
    set_field(page, "preset", "mine")
    ask(page, "two")
    answered(page, 2)
    plain, full = bodies(page)
    assert set(plain) == {"model", "messages", "stream", "stream_options"}
    assert {k: full[k] for k in {**values, **others}} == {**values, **others}  # what has a place of its own counts there
    assert full["stop"] == ["END", "###"] and full["chat_template_kwargs"] == {"enable_thinking": False}
    assert full["messages"][0] == {"role": "system", "content": "Be brief."}
    start(page, server)
    assert page.js("document.getElementById('preset').value") == "mine"
    # The server knows all of them.
    assert server.request("/v1/chat/completions", dict(full, stream=False, stream_options=None))[0] == 200


def test_other_fields_are_a_json_object(page, server):
    start(page, server)
    for text, why in (("[]", "The fields must be a JSON object."), ('{"n": 2}', "n is said by the page itself."),
                      ("{", "The list of fields is not JSON")):
        set_field(page, "others", text)
        ask(page, "one")
        page.wait(f"document.getElementById('chat-error').textContent.startsWith({json.dumps(why)})")
        assert page.js("document.activeElement.id") == "others" and page.js(TEXTS) == []
        page.js("document.getElementById('prompt').value = ''")


def test_answers_follow_a_schema(page, server):
    start(page, server, schema='{"enum": ["red", ')
    ask(page, "which?")
    page.wait("document.getElementById('chat-error').textContent.startsWith('The schema is not JSON')")
    assert page.js("document.activeElement.id") == "schema" and page.js(TEXTS) == []
    set_field(page, "schema", '{"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"], "additionalProperties": false}')
    page.js("document.getElementById('prompt').focus()")
    page.key("Enter", "\r")
    answered(page, 1)
    assert page.js(f"{LAST}.querySelector('pre').textContent") in ('{\n  "color": "red"\n}', '{\n  "color": "blue"\n}')


def test_tools_are_shown_and_answered_by_hand(page, server):
    tool = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    start(page, server, tools=json.dumps(tool))
    page.js(FAKE % json.dumps([{"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":'}}]},
                               {"tool_calls": [{"index": 0, "function": {"arguments": ' "Rome"}'}}]}]))
    ask(page, "How is it in Rome?")
    answered(page, 1)
    assert page.js(f"{LAST}.querySelector('.call pre').textContent") == '{\n  "city": "Rome"\n}'
    says(page, "Sunny.")
    page.js("{const b = document.querySelector('.results textarea'); b.value = '{\"sky\": \"blue\"}'; 0}")
    press(page, "Send the result")
    answered(page, 2)
    first, second = bodies(page)
    assert first["tools"] == tool
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "blue"}'}]
    assert page.js(f"{LAST}.querySelector('.text').textContent") == "Sunny."


def test_two_models_answer_beside_each_other(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--served-model-name=left,right")
    try:
        start(page, s.wait_ready(), max_tokens=5, model="left", beside="right")
        ask(page, "hello")
        answered(page, 2)
        assert page.js("[...document.querySelectorAll('.beside .who span')].map((e) => e.textContent)") == ["left", "right"]
        boxes = page.js("[...document.querySelectorAll('.beside > .msg')].map((e) => e.getBoundingClientRect()).map((r) => [r.left, r.top])")
        assert boxes[0][0] < boxes[1][0] and boxes[0][1] == boxes[1][1]
        second = page.js("document.querySelectorAll('.beside .text')[1].textContent")
        press(page, "Go on with this answer")
        set_field(page, "beside", "")
        says(page, "on")
        ask(page, "more")
        answered(page, 3)
        assert "".join(bodies(page)[0]["messages"][1]["content"].split()) == "".join(second.split())
        leave(page)
    finally:
        assert s.stop() == 0


def test_models_are_loaded_when_they_are_asked(page, tiny_model, cache):
    s = Server(f"left={tiny_model}", cache, f"right={tiny_model}")
    texts = "[...document.querySelectorAll('#model option')].map((o) => o.textContent).join('|')"
    load = "document.getElementById('load')"
    try:
        start(page, s.wait_ready(), max_tokens=4, model="left")
        assert page.js(texts) == "left · Not loaded|right · Not loaded"
        page.wait("document.getElementById('health-text').textContent === 'Models load when asked'")
        ask(page, "hello")
        answered(page, 1)
        page.wait(f"{texts} === 'left|right · Not loaded' && {load}.textContent === 'Unload' && !{load}.disabled")
        page.js(f"{load}.click()")
        page.wait(f"{texts} === 'left · Not loaded|right · Not loaded'")
        set_field(page, "model", "right")
        page.js(f"{load}.click()")
        page.wait(f"{texts} === 'left · Not loaded|right'")
        assert page.js("document.getElementById('temperature').placeholder") == "0.8"
        leave(page)
    finally:
        assert s.stop() == 0


def test_the_context_is_measured(page, server):
    start(page, server)
    max_len = server.metric("nv_llm_max_seq_len", model="tensorrt_llm")
    says(page, "a")
    ask(page, "hi")
    answered(page, 1)
    text = "document.getElementById('context-text').textContent.replace(/\\u202f/g, '')"
    page.wait(f"{text} === '42 of {int(max_len)} tokens'")
    page.js("{const p = document.getElementById('prompt'); p.value = 'x'.repeat(400); p.dispatchEvent(new Event('input')); 0}")
    assert page.js(text) == f"≈142 of {int(max_len)} tokens"


# ---- where and how it is shown ----

class Below(http.server.BaseHTTPRequestHandler):
    """Passes what lies below /some/path/ on, as a proxy does."""
    protocol_version = "HTTP/1.0"

    def pass_on(self):
        if not self.path.startswith("/some/path/"):
            return self.send_error(404)
        c = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        c.request(self.command, self.path[len("/some/path"):], body or None, {"Content-Type": self.headers.get("Content-Type", "")} if body else {})
        r = c.getresponse()
        self.send_response(r.status)
        for k, v in r.getheaders():
            if k.lower() not in ("transfer-encoding", "connection"):
                self.send_header(k, v)
        self.end_headers()
        while piece := r.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        c.close()

    do_GET = do_POST = pass_on

    def log_message(self, *_):
        pass


def test_it_works_below_a_path(page, server):
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Below)
    proxy.behind = server.http
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        page.open(f"http://127.0.0.1:{proxy.server_port}/some/path/")
        page.wait("document.getElementById('model').value === 'llama'")
        set_field(page, "max_tokens", 4)
        ask(page, "hello")
        answered(page, 1)
        page.js("location.hash = 'live'")
        page.wait("document.querySelectorAll('#models tr').length === 5")
        leave(page)
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def test_chinese_and_themes(page, server):
    start(page, server)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.js(background)
    set_field(page, "theme", "dark")
    dark = page.js(background)
    assert light != dark
    page.look(1280, 800, dark=True)
    set_field(page, "theme", "light")
    assert page.js(background) == light
    set_field(page, "theme", "")
    assert page.js(background) == dark
    page.look(1280, 800)
    set_field(page, "language", "zh")
    page.wait("document.readyState === 'complete' && document.documentElement.lang === 'zh' && document.getElementById('new').textContent === '新对话'")
    page.wait("document.getElementById('model').value")
    says(page, "好")
    ask(page, "你好")
    answered(page, 1)
    assert page.js(f"[...{LAST}.querySelectorAll('.tools button')].map((b) => b.textContent)") == ["复制", "重新回答", "继续", "编辑", "删除"]


def test_keys(page, server):
    start(page, server)
    says(page, "a")
    ask(page, "one")
    answered(page, 1)
    page.key("ArrowUp")
    assert page.js("document.activeElement.getAttribute('aria-label')") == "Edit the message"
    page.key("Escape")
    assert page.js("document.activeElement.id") == "prompt"
    page.key("r", alt=True)
    page.wait("document.querySelectorAll('.branches').length === 1")
    answered(page, 1)
    page.key("n", alt=True)
    assert page.js(TEXTS) == []
    page.key("ArrowDown", alt=True)
    page.wait(f"{TEXTS}.length === 2")
    for letter, panel in (("l", "sidebar"), ("s", "panel")):
        page.key(letter, alt=True)
        assert page.js(f"document.getElementById('{panel}').hidden")
        page.key(letter, alt=True)
        assert page.js(f"!document.getElementById('{panel}').hidden && document.getElementById('{panel}').contains(document.activeElement)")
    page.js("document.activeElement.blur()")
    page.key("?", "?")
    assert page.js("document.getElementById('help').open")
    page.key("Escape")
    page.wait("!document.getElementById('help').open")


def test_the_keyboard_goes_from_left_to_right(page, server):
    start(page, server)
    page.js("document.activeElement.blur()")
    seen = []
    for _ in range(40):
        page.key("Tab")
        seen.append(page.js("(document.activeElement.closest('header, #sidebar, .talk, #panel') || document.activeElement).id || document.activeElement.closest('header, .talk')?.className || document.activeElement.closest('header')?.tagName || ''"))
        if seen[-1] == "panel" and page.js("document.activeElement.id") == "language":
            break
    order = [s for i, s in enumerate(seen) if i == 0 or s != seen[i - 1]]
    order = [s for s in order if s in ("HEADER", "sidebar", "talk", "panel")]
    assert order == ["HEADER", "sidebar", "talk", "panel"]
