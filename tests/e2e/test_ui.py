# SPDX-License-Identifier: Apache-2.0
"""The page at /: what the server sends for it, and the page itself in a browser where there is one."""
import gzip
import http.client
import json
import re
import shutil
import subprocess
import time

import pytest

from llm_server import BIN, ROOT, Server
from ui import ANSWERS, FAKE, LAST, ask, leave, needs_browser, page, press, set_field  # noqa: F401 (page is a fixture)

PAGE = ROOT / "src/frontends/ui/page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {"/" if f.name == "index.html" else f"/ui/{f.name}": TYPES[f.suffix] for f in sorted(PAGE.iterdir())}
CHAT = {"model": "ensemble", "messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 20,
        "ignore_eos": True}


def fetch(server, path, method="GET", **headers):
    c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
    c.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    r = c.getresponse()
    body = r.read()
    c.close()
    return r, body


def stats(server):
    r, body = fetch(server, "/ui/stats")
    assert r.status == 200
    return json.loads(body)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


@pytest.fixture(scope="module")
def explicit(tiny_model, cache):
    s = Server(tiny_model, cache, "--model-control-mode=explicit", "--load-model=*")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


# ---- files ----

@pytest.mark.parametrize("path", FILES)
def test_files_are_those_of_the_tree(server, path):
    r, body = fetch(server, path)
    assert r.status == 200 and r.headers["Content-Type"].startswith(FILES[path])
    assert body == (PAGE / ("index.html" if path == "/" else path.rsplit("/", 1)[1])).read_bytes()
    assert r.headers["X-Content-Type-Options"] == "nosniff"
    rules = r.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(rules)
    assert "unsafe" not in r.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", FILES)
def test_files_are_sent_once(server, path):
    first, body = fetch(server, path)
    tag = first.headers["ETag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        r, nothing = fetch(server, path, If_None_Match=known)
        assert r.status == 304 and nothing == b"" and r.headers["ETag"] == tag
        assert r.headers["Content-Length"] is None
    r, again = fetch(server, path, If_None_Match='"0123"')
    assert r.status == 200 and again == body
    packed, small = fetch(server, path, Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip" and gzip.decompress(small) == body
    assert packed.headers["ETag"] != tag and "Accept-Encoding" in packed.headers["Vary"]
    head, empty = fetch(server, path, method="HEAD")
    assert head.status == 200 and empty == b"" and int(head.headers["Content-Length"]) == len(body)
    assert fetch(server, path, method="POST")[0].status == 405


def test_browsers_find_an_icon_beside_any_page(server):
    r, body = fetch(server, "/favicon.ico")
    assert r.status == 200 and r.headers["Content-Type"] == "image/svg+xml" and body == (PAGE / "icon.svg").read_bytes()


def test_other_names_are_not_there(server):
    for path in ("/ui/", "/ui/index.html", "/ui/app", "/ui/../ui/app.css/x", "/ui/nothing.js"):
        assert fetch(server, path)[0].status == 404


def test_the_page_asks_nobody_else():
    for f in PAGE.iterdir():
        text = re.sub(r"http://www\.w3\.org/(?:2000/svg|1998/Math/MathML)", "", f.read_text())
        assert not re.search(r"https?://[a-z]", text), f.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|\.srcdoc", text), f.name
    html = (PAGE / "index.html").read_text()
    assert " style=" not in html and not re.search(r"\son[a-z]+=", html) and "<style" not in html
    # Paths without a slash in front, so that a proxy may put the page below a path of its own.
    assert not re.search(r'(?:src|href)="/', html)
    assert not any(re.search(r"[\"'`]/(?:v[12]|ui|api)/", f.read_text()) for f in PAGE.glob("*.js"))


WORKERS = {"pdf.js", "glyphs.js"}  # read when a file is attached


def test_the_first_paint_waits_for_no_module():
    html = (PAGE / "index.html").read_text()
    assert re.findall(r'ui/(\w+\.js)', html) == ["early.js"]
    imports = {f.name: set(re.findall(r'(?:from|import\()\s?"\./(\w+\.js)"', f.read_text())) for f in PAGE.glob("*.js")}
    first = imports["early.js"]
    imports = {n: i for n, i in imports.items() if n not in WORKERS}
    second = set().union(*(imports[n] for n in first))
    third = set().union(*(imports[n] for n in second))
    assert first == {"chat.js"} and first | second | third | {"early.js"} == set(imports)  # at most three round trips


@needs_browser
def test_the_first_paint_takes_less_than_100_ms(page, server):
    """Of the processor time of the page's thread, which other work on the machine does not lengthen as it does the wait."""
    page.call("Performance.enable", timeDomain="threadTicks")
    page.call("Network.enable")
    page.call("Network.setCacheDisabled", cacheDisabled=True)

    def spent():
        return next(m["value"] * 1000 for m in page.call("Performance.getMetrics")["metrics"] if m["name"] == "ThreadTime")

    waited, took = [], []
    for _ in range(5):
        page.open("about:blank")
        before = spent()
        page.call("Page.navigate", url=server.url("/"))
        waited.append(page.wait("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        took.append(spent() - before)
    print(f"first paint: {min(took):.0f} ms of the page's thread, {min(waited):.0f} ms on the clock")
    assert 0 < min(took) < 100, (took, waited)


def test_the_whole_page_is_small(server):
    total = sum(len(fetch(server, path, Accept_Encoding="gzip")[1]) for path in FILES)
    assert total < 120_000


def test_ui_false_turns_it_off(tiny_model, cache):
    s = Server(tiny_model, cache, "--ui=false")
    try:
        s.wait_ready()
        for path in [*FILES, "/favicon.ico", "/ui/stats"]:
            assert fetch(s, path)[0].status == 404
        assert s.request("/v1/models")[0] == 200
    finally:
        assert s.stop() == 0
    assert "--ui <boolean>" in subprocess.run([BIN / "tritonserver", "--help"], capture_output=True, text=True).stdout


# ---- statistics ----

def shape(v):
    """Types instead of values; of a list the first element."""
    if isinstance(v, dict):
        return {k: shape(x) for k, x in v.items()}
    if isinstance(v, list):
        return [shape(x) for x in v[:1]]
    return "number" if isinstance(v, (int, float)) and not isinstance(v, bool) else type(v).__name__


WINDOW = dict.fromkeys(["total", "n", "p50", "p90", "p99"], "number")
SHAPE = {
    "server": "str", "version": "str", "time_ms": "number", "uptime_ms": "number", "control": "str",
    "openai": "bool", "needs_key": "bool", "metrics": "bool", "pull": "bool",
    "models": [{"name": "str", "version": "str", "state": "str", "reason": "str", "succeeded": "number",
                "failed": "number", "executions": "number", "request_ms_sum": "number",
                "queue_ms_sum": "number", "pending": "number"}],
    "engines": [{"model": "str", "version": "str", "name": "str",
                 "requests": dict.fromkeys(["active", "waiting", "scheduled", "context", "max"], "number"),
                 "kv_blocks": dict.fromkeys(["max", "used", "free", "reused", "tokens_per"], "number"),
                 "memory_bytes": dict.fromkeys(["cpu", "gpu", "pinned", "reserved"], "number"),
                 "max_seq_len": "number", "paused": "number", "last_step_ms": "number", "prompt_tokens": "number",
                 "generated_tokens": "number", "busy_ms": "number", "first_token_ms": WINDOW,
                 "inter_token_ms": WINDOW, "step_ms": WINDOW,
                 "steps": {"first": "number", "n": "number", "ms": ["number"], "idle_ms": ["number"],
                           "prompt_tokens": ["number"], "generated_tokens": ["number"]}, "ranks": []}],
    "cpu": dict.fromkeys(["load", "memory_used_bytes", "memory_total_bytes"], "number"),
    "workers": dict.fromkeys(["waiting", "running", "done", "wait_ms", "run_ms"], "number"),
}


def test_memory_is_what_is_in_use(server):
    """The cache of a CPU is set aside as a whole and becomes memory as it fills."""
    assert server.request("/v1/chat/completions", CHAT)[0] == 200
    e = until(lambda: next((e for e in stats(server)["engines"] if e["generated_tokens"]), None))
    used, reserved = e["memory_bytes"]["cpu"], e["memory_bytes"]["reserved"]
    assert 0 < used < reserved / 4
    assert server.metric("nv_trt_llm_runtime_memory_metrics", memory_type="reserved") == reserved
    assert used < int(next(line for line in open(f"/proc/{server.process.pid}/status") if "VmRSS" in line).split()[1]) * 1024


def test_stats_have_their_shape(server):
    assert server.request("/v1/chat/completions", CHAT)[0] == 200
    until(lambda: stats(server)["engines"][0]["generated_tokens"] > 0)
    r, body = fetch(server, "/ui/stats")
    assert r.headers["Content-Type"] == "application/json" and r.headers["Cache-Control"] == "no-store"
    s = json.loads(body)
    assert isinstance(s.pop("gpus"), list)
    assert shape(s) == SHAPE
    assert {m["name"] for m in s["models"]} >= {"ensemble", "tensorrt_llm"}
    assert all(m["state"] == "READY" for m in s["models"])
    assert s["control"] == "none" and s["openai"] and s["metrics"] and not s["needs_key"]
    assert abs(s["time_ms"] / 1000 - time.time()) < 5
    assert 0 <= s["cpu"]["load"] <= 1 and 0 < s["cpu"]["memory_used_bytes"] <= s["cpu"]["memory_total_bytes"]


def at_rest(server):
    """Statistics that half a second does not change: requests before are counted to the end."""
    found = []

    def same():
        found.append([(e["generated_tokens"], e["requests"]["active"]) for e in stats(server)["engines"]])
        time.sleep(0.5)
        return found[-1] if found[-1:] == found[-2:-1] and not any(a for _, a in found[-1]) else None

    until(same)
    return stats(server)


def test_numbers_follow_the_requests(server):
    before = at_rest(server)
    n = 3
    for i in range(n):
        body = dict(CHAT, messages=[{"role": "user", "content": f"number {i} of some words"}], stream=i == 0)
        assert server.request("/v1/chat/completions", body)[0] == 200

    def settled():
        s = stats(server)
        e, b = s["engines"][0], before["engines"][0]
        return s if e["generated_tokens"] - b["generated_tokens"] >= 20 * n and not e["requests"]["active"] else None

    after = until(settled)
    e, b = after["engines"][0], before["engines"][0]
    assert e["generated_tokens"] - b["generated_tokens"] == 20 * n
    assert e["prompt_tokens"] > b["prompt_tokens"]
    assert e["first_token_ms"]["total"] - b["first_token_ms"]["total"] == n
    assert e["inter_token_ms"]["total"] - b["inter_token_ms"]["total"] == 19 * n
    assert e["busy_ms"] > b["busy_ms"] and e["last_step_ms"] > b["last_step_ms"]
    assert 0 < e["inter_token_ms"]["p50"] <= e["inter_token_ms"]["p90"] <= e["inter_token_ms"]["p99"]
    llm = [next(m for m in s["models"] if m["name"] == "tensorrt_llm") for s in (before, after)]
    assert llm[1]["succeeded"] - llm[0]["succeeded"] == n


def test_steps_are_a_timeline(server):
    server.request("/v1/chat/completions", CHAT)
    e = until(lambda: (x := stats(server)["engines"][0])["steps"]["n"] and not x["requests"]["active"] and x)
    s = e["steps"]
    columns = [s[k] for k in ("ms", "idle_ms", "prompt_tokens", "generated_tokens")]
    assert {len(c) for c in columns} == {s["n"]} and s["n"] <= 256
    assert s["first"] + s["n"] == e["step_ms"]["total"]
    assert all(v >= 0 for c in columns for v in c)
    if s["first"] == 0:  # nothing was forgotten
        assert sum(s["prompt_tokens"]) == e["prompt_tokens"]
        assert sum(s["generated_tokens"]) == e["generated_tokens"]
        assert sum(s["ms"]) == pytest.approx(e["busy_ms"], abs=0.01 + 0.001 * s["n"])


def test_the_same_numbers_are_metrics(server):
    server.request("/v1/chat/completions", CHAT)

    def agree():
        text, e = server.metrics_text(), stats(server)["engines"][0]
        return all(f'{family}{{model="tensorrt_llm",version="1"}} {value}\n' in text for family, value in [
            ("nv_llm_time_to_first_token_ms_count", e["first_token_ms"]["total"]),
            ("nv_llm_inter_token_ms_count", e["inter_token_ms"]["total"]),
            ("nv_llm_step_generated_tokens_sum", e["generated_tokens"])])

    until(agree)  # a snapshot is up to 0.2 s old


def test_stats_without_metrics(tiny_model, cache):
    s = Server(tiny_model, cache, "--allow-metrics=false", "--allow-openai=false", "--id=quiet")
    try:
        v = stats(s.wait_ready())
        assert not v["metrics"] and not v["openai"] and v["engines"] == [] and v["cpu"] is None
        assert v["server"] == "quiet" and len(v["models"]) == 5
    finally:
        assert s.stop() == 0


def test_stats_can_be_restricted(tiny_model, cache):
    s = Server(tiny_model, cache, "--http-restricted-api=statistics:x-who=me", "--api-key=secret")
    try:
        s.wait_ready()
        assert fetch(s, "/ui/stats")[0].status == 403
        r, body = fetch(s, "/ui/stats", x_who="me")
        assert r.status == 200 and json.loads(body)["needs_key"]
        assert fetch(s, "/")[0].status == 200
    finally:
        assert s.stop() == 0


def test_stats_follow_load_and_unload(explicit):
    def state(name):
        return next(m for m in stats(explicit)["models"] if m["name"] == name)

    assert stats(explicit)["control"] == "explicit"
    assert explicit.request("/v2/repository/models/tensorrt_llm_bls/unload", method="POST", body=b"")[0] == 200
    until(lambda: state("tensorrt_llm_bls")["state"] == "UNAVAILABLE")
    assert explicit.request("/v2/repository/models/tensorrt_llm_bls/load", method="POST", body=b"")[0] == 200
    until(lambda: state("tensorrt_llm_bls")["state"] == "READY")


# ---- in a browser ----

@needs_browser
def test_chat_in_a_browser(page, server):
    page.open(server.url("/"))
    assert page.wait("document.getElementById('model').value") == "llama"
    set_field(page, "max_tokens", 12)
    set_field(page, "temperature", 0)
    ask(page, "the quick brown fox")
    page.wait(f"{ANSWERS} === 1")
    first = page.js(f"{LAST}.querySelector('.text').textContent")
    assert "12 tokens" in page.js(f"{LAST}.querySelector('.meta').textContent")
    body = dict(CHAT, max_tokens=12, temperature=0)
    del body["ignore_eos"]
    expected = server.request("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    assert "".join(first.split()) == "".join(expected.split())

    press(page, "Answer again")
    page.wait(f"!document.querySelector('.busy') && {LAST}.querySelectorAll('.branches').length")
    assert page.js(f"{LAST}.querySelector('.branches').textContent") == "‹2/2›"
    page.wait(f"{ANSWERS} === 1")
    assert page.js(f"{LAST}.querySelector('.text').textContent") == first

    page.js("document.getElementById('new').click()")
    assert page.js("document.querySelectorAll('.msg').length") == 0


@needs_browser
def test_settings_show_what_is_in_force(page, tiny_model, cache, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "own")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 21}))
    s = Server(folder, cache)
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value")
        shown = {f: page.js(f"document.getElementById('{f}').placeholder")
                 for f in ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "seed")}
        assert shown == {"temperature": "0.7", "top_p": "1", "top_k": "21", "repetition_penalty": "1",
                         "max_tokens": "no limit", "seed": "random"}
        leave(page)
    finally:
        assert s.stop() == 0


@needs_browser
def test_plain_text_is_drawn_with_the_given_temperature(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--allow-openai=false")
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value === 'ensemble'")
        set_field(page, "max_tokens", 12)

        def texts(temperature):
            set_field(page, "temperature", temperature)
            out = set()
            for _ in range(2):
                page.js("document.getElementById('new').click()")
                ask(page, "the quick brown fox")
                page.wait(f"{ANSWERS} === 1")
                out.add(page.js(f"{LAST}.querySelector('.text').textContent"))
            return out

        assert len(texts(1)) == 2 and len(texts(0)) == 1
        leave(page)
    finally:
        assert s.stop() == 0


@needs_browser
def test_stop_in_a_browser(page, server):
    """An answer that arrives slowly, over a thin line, is stopped halfway; what came stays."""
    def whole(seed):
        body = {"model": "ensemble", "messages": [{"role": "user", "content": "go on and on"}], "seed": seed,
                "max_tokens": 400, "temperature": 1}
        choice = server.request("/v1/chat/completions", body)[1]["choices"][0]
        return choice["finish_reason"] == "length" and choice["message"]["content"]

    seed = next(s for s in range(100) if whole(s))
    page.open(server.url("/"))
    page.wait("document.getElementById('model').value")
    for name, value in [("max_tokens", 400), ("temperature", 1), ("seed", seed)]:
        set_field(page, name, value)
    page.call("Network.enable")
    page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=15000, uploadThroughput=-1)
    ask(page, "go on and on")
    page.wait(f"document.querySelector('.busy .text') && {LAST}.querySelector('.text').textContent.length > 40")
    assert page.js("document.getElementById('send').hidden && !document.getElementById('stop').hidden")
    page.key("Escape")
    page.wait(f"{ANSWERS} === 1")
    got = "".join(page.js(f"{LAST}.querySelector('.text').textContent").split())
    assert 20 < len(got) < len("".join(whole(seed).split()))
    assert "stopped" in page.js(f"{LAST}.querySelector('.meta').textContent")
    until(lambda: not stats(server)["engines"][0]["requests"]["active"])


@needs_browser
def test_text_of_the_model_is_only_text(page, server):
    """What a model writes never becomes markup of its own."""
    page.open(server.url("/"))
    page.wait("document.getElementById('model').value")
    set_field(page, "max_tokens", 1)
    ask(page, "<img src=x onerror='window.broken=1'><b>bold</b>")
    page.wait(f"{ANSWERS} + Number(!document.getElementById('chat-error').hidden) === 1")
    assert page.js("document.querySelector('.msg.user img, .msg.user b')") is None
    assert page.js("window.broken") is None


MARKDOWN = """Some **bold** words and `a < b`.

1. one
2. two

- a list
  - within [it](https://x.org)
- [x] done

| a | b |
|---|--:|
| 1 | `2` |

> quoted

```c
int x = 1;

/* - no list */
```

## Heading

<script>window.broken = 1</script> the *end*"""

@needs_browser
def test_markdown_is_drawn_while_it_comes(page, server):
    page.open(server.url("/"))
    page.wait("document.getElementById('model').value")
    page.js(FAKE % json.dumps([{"reasoning_content": "let me <b>think</b>"},
                               *({"content": MARKDOWN[i:i + 7]} for i in range(0, len(MARKDOWN), 7))]))
    ask(page, "show")
    page.wait(f"{ANSWERS} === 1")
    end = page.js(f"{LAST}.querySelector('.text').outerHTML")
    assert page.js("window.live") == end  # piece by piece it became the same as at once
    assert end == ('<div class="text"><p>Some <strong>bold</strong> words and <code>a &lt; b</code>.</p>'
                   '<ol start="1"><li>one</li><li>two</li></ol>'
                   '<ul><li>a list<ul><li>within <a href="https://x.org" target="_blank" rel="noopener noreferrer">it</a></li></ul></li>'
                   '<li class="task"><input type="checkbox" disabled="" aria-label="done">done</li></ul>'
                   '<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th class="">a</th><th class="to-right">b</th></tr></thead>'
                   '<tbody><tr><td class="">1</td><td class="to-right"><code>2</code></td></tr></tbody></table></div>'
                   '<blockquote><p>quoted</p></blockquote>'
                   '<div class="code"><div class="bar"><span>c</span><button type="button" class="plain" aria-label="Copy the code" title="Copy the code">Copy</button></div>'
                   '<pre tabindex="0" role="group" aria-label="Code"><code><span class="hl-k">int</span> x = <span class="hl-n">1</span>;\n\n'
                   '<span class="hl-c">/* - no list */</span></code></pre></div>'
                   '<h4>Heading</h4>'
                   '<p>&lt;script&gt;window.broken = 1&lt;/script&gt; the <em>end</em></p></div>')
    assert page.js(f"{LAST}.querySelector('.reasoning div').textContent") == "let me <b>think</b>"
    assert page.js("window.broken") is None


@needs_browser
def test_live_view_in_a_browser(page, explicit):
    page.open(explicit.url("/#live"))
    page.wait("document.querySelectorAll('#models tr').length === 5")
    explicit.request("/v1/chat/completions", CHAT)
    page.wait("/[1-9]\\d* steps/.test(document.querySelector('.legend').textContent)")
    assert page.js("document.querySelector('#engines h3').textContent").startswith("llamatensorrt_llm version 1")
    button = "document.querySelector('[aria-label$=\"load tensorrt_llm_bls\" i]')"
    page.call("Runtime.evaluate", expression=f"setTimeout(() => {button}.click())")
    page.wait(f"{button}.textContent === 'Load' && !{button}.disabled")
    page.js(f"{button}.click()")
    page.wait(f"{button}.textContent === 'Unload' && !{button}.disabled")
    assert "loaded" in page.js("document.getElementById('control-status').textContent")


@needs_browser
def test_api_key_in_a_browser(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=secret")
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("!document.getElementById('chat-error').hidden")
        assert page.js("document.getElementById('model').value") == ""
        set_field(page, "key", "secret")
        page.wait("document.getElementById('model').value === 'llama'")
        set_field(page, "max_tokens", 5)
        ask(page, "hello")
        page.wait(f"{ANSWERS} === 1")
        leave(page, "401")
    finally:
        assert s.stop() == 0


@needs_browser
def test_orders_of_a_browser_bring_the_key(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=secret", "--model-control-mode=explicit", "--load-model=*")
    status = "document.getElementById('control-status').textContent"
    button = "document.querySelector('[aria-label$=\"load tensorrt_llm_bls\" i]')"
    try:
        page.open(s.wait_ready().url("/#live"))
        page.wait("document.querySelectorAll('#models tr').length === 5 && !document.getElementById('key-row').hidden")
        page.call("Runtime.evaluate", expression=f"setTimeout(() => {button}.click())")
        page.wait(f"{status}.includes('API key')")
        set_field(page, "key", "secret")
        for verb, then in (("unload", "Load"), ("load", "Unload")):
            page.call("Runtime.evaluate", expression=f"setTimeout(() => {button}.click())")
            page.wait(f"{status}.endsWith(': {verb}ed') && {button}.textContent === '{then}' && !{button}.disabled")
        leave(page, "401")
    finally:
        assert s.stop() == 0


@needs_browser
def test_chat_without_v1_brings_the_key(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=secret", "--allow-openai=false")
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value && !document.getElementById('key-row').hidden")
        set_field(page, "key", "secret")
        set_field(page, "max_tokens", 5)
        ask(page, "hello")
        page.wait(f"{ANSWERS} === 1")
        leave(page)
    finally:
        assert s.stop() == 0


@needs_browser
def test_chat_needs_no_statistics(page, tiny_model, cache):
    s = Server(tiny_model, cache, "--http-restricted-api=statistics:x-who=me")
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value === 'llama'")
        set_field(page, "max_tokens", 5)
        ask(page, "hello")
        page.wait(f"{ANSWERS} === 1")
        page.js("location.hash = 'live'")
        page.wait("!document.getElementById('live-notice').hidden")
        leave(page, "403")
    finally:
        assert s.stop() == 0


@needs_browser
def test_gpus_are_shown(page, server):
    """Figures as a machine with GPUs gives them; one has no power reading."""
    page.open(server.url("/"))
    real = stats(server)
    real["gpus"] = [{"uuid": f"GPU-{i}", "load": 0.5 + i / 4, "memory_used_bytes": 2 << 30, "memory_total_bytes": 8 << 30,
                     "power_watts": None if i else 300, "power_limit_watts": None if i else 700} for i in range(2)]
    page.js(f"{{const all = window.fetch, fake = {json.dumps(json.dumps(real))};"
            "window.fetch = async (u, o) => u.endsWith('/ui/stats') ? new Response(fake) : all(u, o); location.hash = 'live'; 0}")
    page.wait("document.querySelectorAll('#machine .tile').length === 6")
    text = page.js("document.getElementById('machine').textContent")
    for part in ("GPU 1", "50%", "75%", "25%", "300 of 700 W", "2.0 GiB of 8.0 GiB"):
        assert part in text


@needs_browser
def test_without_template_the_text_is_continued(page, tiny_model, cache, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "plain")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    s = Server(folder, cache)
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value === 'plain'")
        page.wait("!document.getElementById('plain-note').hidden")  # before anything is sent
        assert "continues the text" in page.js("document.getElementById('plain-note').textContent")
        assert page.js("document.getElementById('prompt').placeholder") == "Text to continue"
        set_field(page, "max_tokens", 8)
        ask(page, "the quick brown fox")
        page.wait(f"{ANSWERS} === 1")
        assert "no chat template" in page.js(f"{LAST}.querySelector('.meta').textContent")
        assert page.js("document.getElementById('max_tokens').placeholder") == "256"
        assert page.js("document.getElementById('chat-error').hidden")
        set_field(page, "schema", '{"enum": ["red", "blue"]}')
        ask(page, "a color")
        page.wait(f"{ANSWERS} === 2 && !document.querySelectorAll('.busy').length")
        assert page.js(f"{LAST}.querySelector('pre').textContent") in ('"red"', '"blue"')
        leave(page)
    finally:
        assert s.stop() == 0


@needs_browser
@pytest.mark.parametrize("decoupled", [True, False])
def test_without_openai_the_text_is_continued(page, tiny_model, cache, decoupled):
    s = Server(tiny_model, cache, "--allow-openai=false", "--set", f"decoupled_mode:{decoupled}")
    try:
        page.open(s.wait_ready().url("/"))
        page.wait("document.getElementById('model').value === 'ensemble'")
        set_field(page, "max_tokens", 8)
        ask(page, "the quick brown fox")
        page.wait(f"{ANSWERS} === 1")
        assert "continued" in page.js(f"{LAST}.querySelector('.meta').textContent")
        assert "brown fox" not in page.js(f"{LAST}.querySelector('.text').textContent")
        leave(page, *([] if decoupled else ["400"]))
    finally:
        assert s.stop() == 0


@needs_browser
@pytest.mark.parametrize("view", ["chat", "live"])
def test_fits_a_phone_and_has_names(page, server, view):
    page.look(360, 740, scale=2)
    page.open(server.url(f"/#{view}"))
    page.wait("document.getElementById('model').value && document.querySelectorAll('#models tr').length * !document.getElementById('live').hidden + !document.getElementById('chat').hidden")
    assert page.js("document.documentElement.scrollWidth === 360 && innerWidth === 360 && visualViewport.width === 360")
    wanted = {"button", "link", "textbox", "combobox", "spinbutton", "image", "table", "columnheader", "region", "log"}
    nameless = [(role, node["nodeId"]) for role, name, node in page.tree() if role in wanted and not name
                and not (role == "table")]
    assert nameless == []
    roles = [role for role, _, _ in page.tree()]
    assert roles.count("main") == 1 and roles.count("banner") == 1 and "navigation" in roles
