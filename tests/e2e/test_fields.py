# SPDX-License-Identifier: Apache-2.0
"""Fields of requests by API: the tables of the readers in C and fields.tsv against a server, the official packages and
docs/fields.md, which is written from them."""
import csv
import functools
import json
import pathlib
import re
import urllib.error
import urllib.request

import anthropic.types.message_create_params
import ollama._types
import openai.types.chat.completion_create_params
import openai.types.completion_create_params
import openai.types.responses.response_create_params
import pytest
from llm_server import ROOT

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = ROOT / "src/frontends/openai"
PAGE = ROOT / "docs/fields.md"
HELLO = [{"role": "user", "content": "the quick brown fox"}]
FEW = {"model": "ensemble", "max_tokens": 1}
# API: its path, the file that makes its body one of chat/completions or completions, and a body
APIS = {
    "chat": ("/v1/chat/completions", None, {**FEW, "messages": HELLO}),
    "completions": ("/v1/completions", None, {**FEW, "prompt": "the quick"}),
    "responses": ("/v1/responses", "responses_in.c", {"model": "ensemble", "input": "the quick", "max_output_tokens": 1}),
    "messages": ("/v1/messages", "messages_in.c", {**FEW, "messages": HELLO}),
    "ollama": ("/api/chat", "ollama_in.c", {"model": "ensemble", "messages": HELLO, "stream": False, "options": {"num_predict": 1}}),
    "llama": ("/completion", "llama_in.c", {"prompt": "the quick", "n_predict": 1}),
}
HEAD = """# Fields of requests

`tests/e2e/fields_page.py` writes this page from `tests/e2e/fields.tsv` and the tables of the readers (`src/frontends/openai`); a test
sends each field to each API. What a field does is said on the page of its API: [openai.md](openai.md), [responses.md](responses.md),
[messages.md](messages.md), [ollama.md](ollama.md), [llama.md](llama.md).

- **yes**: it is read, and wrong values are an error that names it. Some values may be refused, with the reason.
- **no effect**: clients may send it; nothing here depends on it.
- **refused**: an error of status 400 says why; the reasons stand below the table.
- An empty cell: the field is not known there. The request is answered without it, and the header `x-nereid-warning` names it.

Ollama's samplers are members of `options`. `model` may be left out where one model is served.
"""
TITLES = {"chat": "chat/completions", "completions": "completions", "responses": "responses", "messages": "messages",
          "ollama": "Ollama chat, generate", "llama": "llama.cpp completion, infill"}


def block(text, begin):
    """Of a C source: what an array holds."""
    start = text.index(begin) + len(begin)
    return text[start:text.index("};", start)]


def listed(text, begin):
    """{name: it has an effect}; a comment says for those behind it that they have none."""
    names, effect = {}, True
    for comment, name in re.findall(r'/\*(.*?)\*/|"(\w+)"', block(text, begin), re.S):
        effect = "without effect" not in comment if comment else effect
        if name:
            names[name] = effect
    return names


@functools.cache
def readers():
    """{API: {field: "yes", "no effect" or the reason why not}}"""
    text = (SOURCES / "params.c").read_text()
    out, base, effect = {}, {"CHAT": {}, "COMPLETIONS": {}}, True
    for comment, name, where, why in re.findall(r'/\*(.*?)\*/|\{"(\w+)", IN_(\w+), (NULL|"[^"]+")\}', block(text, "} fields[] = {"), re.S):
        effect = "without effect" not in comment if comment else effect
        for api, known in base.items():
            if name and where in ("BOTH", api):
                known[name] = why.strip('"') if why != "NULL" else "yes" if effect else "no effect"
    assert sum(map(len, base.values())) > 100
    for api, (_, file, _) in APIS.items():
        known = dict(base["COMPLETIONS" if api in ("completions", "llama") else "CHAT"])
        if file:
            source = (SOURCES / file).read_text()
            for name in listed(source, "unknown[] = {"):
                known.pop(name, None)
            known |= {n: "yes" if effect else "no effect" for n, effect in listed(source, "special[] = {").items()}
        if api == "responses":
            known |= dict(re.findall(r'\{"(\w+)", "([^"]+)"\}', block(source, "fields[][2] = {")))
        if api == "ollama":
            known |= dict(re.findall(r'\{"(\w+)",\s+"([^"]+)"\}', block(source, "refused[][2] = {")))
        if api in ("messages", "llama"):
            known |= dict(re.findall(r'NRD_ERR_UNSUPPORTED, "(mcp_servers|lora|post_sampling_probs)", "([^"]+)"', source))
        if api == "llama":
            known |= {n: f"is not offered; leave it out or send {off}" for n, off in re.findall(r'\{"(\w+)", (-?\d)\}', source)}
        out[api] = known
    return out


def others():
    with open(HERE / "fields.tsv") as f:
        return list(csv.DictReader(f, delimiter="\t"))


def known_somewhere():
    return sorted(set().union(*readers().values()))


def page():
    known, why = readers(), {}
    out = [HEAD, f"\n| field | {' | '.join(TITLES.values())} |\n|{'---|' * (len(APIS) + 1)}\n"]
    for name in known_somewhere():
        cells = [known[api].get(name, "") for api in APIS]
        why |= {(name, cell): None for cell in cells if cell not in ("", "yes", "no effect")}
        out.append(f"| `{name}` | {' | '.join(c if c in ('', 'yes', 'no effect') else 'refused' for c in cells)} |\n")
    out.append("\n## Why some are refused\n\n| field | reason |\n|---|---|\n")
    out += [f"| `{name}` | {cell} |\n" for name, cell in why]
    out.append("\n## Fields of others that are not known\n\n| field | of | use instead |\n|---|---|---|\n")
    out += [f"| `{r['field']}` | {r['of']} | {r['instead']} |\n" for r in sorted(others(), key=lambda r: r["field"])]
    return "".join(out)


def ask(server, api, more, path=None):
    """(status, answer, names in the warning)"""
    body = APIS[api][2] if path is None else {**FEW, "prompt": "the quick"}
    request = urllib.request.Request(server.url(path or APIS[api][0]), data=json.dumps({**body, **more}).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            warning = r.headers.get("x-nereid-warning") or ""
            return r.status, json.load(r), set(re.findall(r"\w+", warning.removeprefix("unknown fields:")))
    except urllib.error.HTTPError as e:
        return e.code, json.load(e), set()


@pytest.mark.parametrize("api", APIS)
def test_the_server_knows_what_the_page_says(server, api):
    """Null is no value: what is known is silent then, and what is not is named all the same."""
    known, body = readers()[api], APIS[api][2]
    names = [n for n in sorted({*known_somewhere(), *(r["field"] for r in others())}) if n not in {*body, "model", "prompt", "messages", "input"}]
    for i in range(0, len(names), 12):  # a warning has room for about twenty
        part = names[i:i + 12]
        status, answer, warned = ask(server, api, dict.fromkeys(part))
        assert status == 200, (part, answer)
        assert warned == {n for n in part if n not in known or (api, n) == ("messages", "mcp_servers")}


@pytest.mark.parametrize("api", APIS)
def test_what_is_refused_says_why(server, api):
    for name, why in readers()[api].items():
        if why not in ("yes", "no effect"):
            value = True if name == "post_sampling_probs" else [{"a": 1}]
            path = "/api/generate" if name in ("template", "context") else None
            status, answer, _ = ask(server, api, {name: value}, path)
            assert status == 400 and why in json.dumps(answer, ensure_ascii=False), (name, answer)


@pytest.mark.parametrize("api", ("chat", "completions"))
def test_what_has_no_effect_is_read_nowhere(api):
    """And what has one is: the table itself is not counted."""
    text = "".join((SOURCES / f"{f}.c").read_text() for f in ("params", "chat_in", "guides", "reasoning", "search", "words"))
    text = re.sub(r"roles\[\] = \{.*?\}", "", text.replace(block(text, "} fields[] = {"), ""))
    for name, what in readers()[api].items():
        if what in ("yes", "no effect"):
            assert (f'"{name}"' in text) == (what == "yes"), name


def test_all_fields_of_the_official_packages_are_on_the_page():
    there = {*known_somewhere(), *(r["field"] for r in others())}
    for params in (openai.types.chat.completion_create_params.CompletionCreateParamsBase,
                   openai.types.completion_create_params.CompletionCreateParamsBase,
                   openai.types.responses.response_create_params.ResponseCreateParamsBase,
                   anthropic.types.message_create_params.MessageCreateParamsBase):
        assert set(params.__annotations__) <= there, params
    for params in (ollama._types.ChatRequest, ollama._types.GenerateRequest):
        assert set(params.model_fields) <= there, params


def test_the_page_is_what_the_tables_make():
    assert PAGE.read_text() == page(), "tests/e2e/fields_page.py > docs/fields.md"
