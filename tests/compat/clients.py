#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs' own clients against a running server: what each of them can do, as a table.

  clients.py --url http://localhost:8000 --model NAME                      those that this Python can import
  clients.py --url http://localhost:8000 --model NAME --install FOLDER     each in a venv of its own below FOLDER

The model needs a chat template that takes tools. What must be true of an answer holds for every model, a random one too:
calls and structured answers are asked for in forms that the server has to keep to. --only NAME takes one client (repeatable).
Exits 1 when a check failed."""
import argparse
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
import typing

QUESTION = "Which colour has the sky?"
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
          "required": ["colour", "sure"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time in a zone", "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
    "additionalProperties": False}}}


def is_reply(value):
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        value = value.model_dump()
    assert value["colour"] in ("red", "blue") and isinstance(value["sure"], bool), value


def is_call(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "clock" and arguments["zone"] in ("UTC", "CET"), (name, arguments)


def reply_class():
    import pydantic

    class Reply(pydantic.BaseModel):
        """What colour it has."""
        colour: typing.Literal["red", "blue"]
        sure: bool
    return Reply


def clock(zone: typing.Literal["UTC", "CET"]) -> str:
    """The time in a zone."""
    return f"12:00 {zone}"


def is_error(call, *parts):
    """The call fails, and its message has all parts: the field, and what is wrong with it."""
    try:
        call()
    except Exception as e:
        text = str(e)
        assert all(p in text for p in parts), f"{type(e).__name__}: {text[:400]}"
        return
    raise AssertionError("no error came")


def several(pieces):
    pieces = list(pieces)
    assert len(pieces) > 1, pieces
    return pieces


# ---- clients: each gives its checks as (what, function) ----

def openai_(url, model):
    import openai
    c = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    ask = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}

    def chat():
        r = c.chat.completions.create(**ask)
        assert r.usage.completion_tokens <= 16 and r.choices[0].finish_reason in ("stop", "length")

    def stream():
        chunks = several(c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.total_tokens > 0

    def tools():
        r = c.chat.completions.create(**dict(ask, max_tokens=100), tools=[TOOL], tool_choice="required")
        (call,) = r.choices[0].message.tool_calls
        is_call(call.function.name, call.function.arguments)

    def structured():
        is_reply(c.chat.completions.parse(**dict(ask, max_tokens=100), response_format=reply_class()).choices[0].message.parsed)

    def responses():
        r = c.responses.create(model=model, input=QUESTION, max_output_tokens=16)
        assert r.output and r.usage.output_tokens <= 16
        events = several(c.responses.create(model=model, input=QUESTION, max_output_tokens=16, stream=True))
        assert events[-1].type in ("response.completed", "response.incomplete"), events[-1].type

    def embeddings():
        a, b = c.embeddings.create(model=model, input=["one", "two"]).data
        assert len(a.embedding) == len(b.embedding) > 1

    return [("chat", chat), ("stream", stream), ("tools", tools), ("structured", structured), ("responses", responses),
            ("embeddings", embeddings),
            ("error", lambda: is_error(lambda: c.chat.completions.create(**ask, temperature=9), "temperature", "0 to 2"))]


def anthropic_(url, model):
    import anthropic
    c = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    ask = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100}
    tool = {"name": "clock", "description": "The time", "input_schema": TOOL["function"]["parameters"]}

    def chat():
        r = c.messages.create(**ask)
        assert r.usage.output_tokens <= 100 and r.stop_reason in ("end_turn", "max_tokens")

    def stream():
        with c.messages.stream(**ask) as s:
            several(s)
            assert s.get_final_message().usage.output_tokens > 0

    def tools():
        r = c.messages.create(**ask, tools=[tool], tool_choice={"type": "any"})
        (call,) = [b for b in r.content if b.type == "tool_use"]
        is_call(call.name, call.input)

    return [("chat", chat), ("stream", stream), ("tools", tools),
            ("tokens", lambda: c.messages.count_tokens(model=model, messages=ask["messages"]).input_tokens > 0),
            ("error", lambda: is_error(lambda: c.messages.create(**ask, temperature=9), "temperature"))]


def ollama_(url, model):
    import ollama
    c = ollama.Client(host=url)
    ask = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}

    def chat():
        r = c.chat(**ask, options={"num_predict": 16})
        assert r.done and r.eval_count <= 16

    def tools():
        asked = c.chat(**ask, tools=[TOOL], options={"num_predict": 16})
        assert asked.done
        turn = [*ask["messages"], {"role": "assistant", "tool_calls": [{"function": {
            "name": "clock", "arguments": {"zone": "UTC"}}}]}, {"role": "tool", "tool_name": "clock", "content": "12:00"}]
        more = c.chat(model=model, messages=turn, tools=[TOOL], options={"num_predict": 16})
        assert more.prompt_eval_count > asked.prompt_eval_count

    return [("chat", chat),
            ("stream", lambda: several(c.chat(**ask, stream=True, options={"num_predict": 16}))), ("tools", tools),
            ("structured", lambda: is_reply(c.chat(**ask, format=SCHEMA).message.content)),
            ("generate", lambda: several(c.generate(model=model, prompt=QUESTION, stream=True, options={"num_predict": 16}))),
            ("embeddings", lambda: len(c.embed(model=model, input=["one", "two"]).embeddings) == 2),
            ("error", lambda: is_error(lambda: c.chat(**ask, options={"temperature": -1}), "temperature"))]


def langchain(chat, embeddings, forced, error):
    """What LangChain's interface of every provider can do; `forced`: calls can be asked for."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool

    def tools():
        bound = chat.bind_tools([tool(clock)], **({"tool_choice": "required"} if forced else {}))
        r = bound.invoke(QUESTION)
        if forced:
            (call,) = r.tool_calls
            is_call(call["name"], call["args"])
        turn = [HumanMessage(QUESTION), AIMessage("", tool_calls=[{"name": "clock", "args": {"zone": "UTC"}, "id": "a"}]),
                ToolMessage("12:00", tool_call_id="a")]
        assert chat.bind_tools([tool(clock)]).invoke(turn).response_metadata

    def streamed_tools():
        whole = None
        for piece in chat.bind_tools([tool(clock)], tool_choice="required").stream(QUESTION):
            whole = piece if whole is None else whole + piece
        (call,) = whole.tool_calls
        is_call(call["name"], call["args"])

    def is_chat():
        r = chat.invoke([("system", "Be short."), ("user", QUESTION)])
        assert r.usage_metadata["output_tokens"] > 0

    checks = [("chat", is_chat), ("stream", lambda: several(chat.stream(QUESTION))),
              ("batch", lambda: several(chat.batch([QUESTION, QUESTION]))), ("tools", tools)]
    if forced:
        checks.append(("streamed tools", streamed_tools))
    checks.append(("structured", lambda: is_reply(
        chat.with_structured_output(reply_class(), method="json_schema").invoke(QUESTION))))
    if embeddings:
        checks.append(("embeddings", lambda: several(embeddings.embed_documents(["one", "two"]))))
    return [*checks, ("error", error)]


def langchain_openai(url, model):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    common = {"base_url": url + "/v1", "api_key": "none", "model": model, "max_retries": 0}
    hot = ChatOpenAI(**common, temperature=9)
    return langchain(ChatOpenAI(**common, max_tokens=100),
                     OpenAIEmbeddings(**common, check_embedding_ctx_length=False), True,
                     lambda: is_error(lambda: hot.invoke(QUESTION), "temperature", "0 to 2"))


def langchain_anthropic(url, model):
    from langchain_anthropic import ChatAnthropic
    c = ChatAnthropic(base_url=url, api_key="none", model=model, max_tokens=100, max_retries=0)
    checks = langchain(c, None, False, lambda: is_error(lambda: c.invoke(QUESTION, temperature=9), "temperature"))
    return [check for check in checks if check[0] != "structured"]


def langchain_ollama(url, model):
    from langchain_ollama import ChatOllama, OllamaEmbeddings
    return langchain(ChatOllama(base_url=url, model=model, num_predict=100), OllamaEmbeddings(base_url=url, model=model), False,
                     lambda: is_error(lambda: ChatOllama(base_url=url, model=model, temperature=-1).invoke(QUESTION),
                                      "temperature"))


def llama_index(llm, embed, forced):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    messages = [ChatMessage(role="user", content=QUESTION)]

    def tools():
        r = llm.chat_with_tools([FunctionTool.from_defaults(clock)], user_msg=QUESTION, **({"tool_required": True} if forced else {}))
        calls = llm.get_tool_calls_from_response(r, error_on_no_tool_call=forced)
        if forced:
            is_call(calls[0].tool_name, calls[0].tool_kwargs)

    return [("chat", lambda: str(llm.chat(messages))), ("stream", lambda: several(llm.stream_chat(messages))),
            ("complete", lambda: str(llm.complete(QUESTION))), ("tools", tools),
            ("structured", lambda: is_reply(llm.as_structured_llm(reply_class()).chat(messages).raw)),
            ("embeddings", lambda: several(embed.get_text_embedding_batch(["one", "two"])))]


def llama_index_openai_like(url, model):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike
    common = {"api_base": url + "/v1", "api_key": "none", "max_retries": 0}

    def llm(**more):
        return OpenAILike(model=model, is_chat_model=True, is_function_calling_model=True, max_tokens=100, context_window=512,
                          should_use_structured_outputs=True, **common, **more)
    return [*llama_index(llm(), OpenAILikeEmbedding(model_name=model, **common), True),
            ("error", lambda: is_error(lambda: llm(temperature=9).complete(QUESTION), "temperature"))]


def llama_index_ollama(url, model):
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.llms.ollama import Ollama

    def llm(**more):
        return Ollama(model=model, base_url=url, context_window=512, request_timeout=60, additional_kwargs={
            "num_predict": 100, **more})
    return [*llama_index(llm(), OllamaEmbedding(model_name=model, base_url=url), False),
            ("error", lambda: is_error(lambda: llm(top_p=9).complete(QUESTION), "top_p"))]


def litellm_(url, model):
    import litellm
    litellm.suppress_debug_info = True
    messages = [{"role": "user", "content": QUESTION}]

    def ask(form, base, **more):
        return litellm.completion(f"{form}/{model}", messages=messages, api_base=base, api_key="none", num_retries=0,
                                  **{"max_tokens": 100, **more})

    def form_checks(form, base):
        def tools():
            (call,) = ask(form, base, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
            is_call(call.function.name, call.function.arguments)
        return [(f"{form}: chat", lambda: ask(form, base).choices[0].finish_reason),
                (f"{form}: stream", lambda: several(ask(form, base, stream=True))), (f"{form}: tools", tools)]

    def structured():
        is_reply(ask("openai", url + "/v1", response_format=reply_class()).choices[0].message.content)

    def ollama_chat():
        several(ask("ollama_chat", url, stream=True))
        assert ask("ollama_chat", url).usage.completion_tokens > 0

    def embeddings():
        r = litellm.embedding(f"openai/{model}", input=["one", "two"], api_base=url + "/v1", api_key="none",
                              encoding_format="float")
        assert len(r.data) == 2

    v1 = {"api_base": url + "/v1", "api_key": "none"}

    def text():
        r = litellm.text_completion(model=f"text-completion-openai/{model}", prompt=["one", "two"], max_tokens=4, **v1)
        assert [c.index for c in r.choices] == [0, 1] and r.usage.completion_tokens > 0

    def responses():
        asked = {"model": f"openai/{model}", "input": QUESTION, "max_output_tokens": 16, **v1}
        kinds = [e.type.value for e in litellm.responses(stream=True, **asked)]
        assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
        r = litellm.responses(**asked)
        assert litellm.get_responses(r.id, custom_llm_provider="openai", **v1).id.split("_")[0] == "resp"

    def batches():
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": model, "messages": messages, "max_tokens": 4}}
        more = {"custom_llm_provider": "openai", **v1}
        f = litellm.create_file(file=("b.jsonl", json.dumps(line).encode()), purpose="batch", **more)
        b = litellm.create_batch(completion_window="24h", endpoint="/v1/chat/completions", input_file_id=f.id, **more)
        while b.status not in ("completed", "failed"):
            time.sleep(0.2)
            b = litellm.retrieve_batch(b.id, **more)
        answer = json.loads(litellm.file_content(b.output_file_id, **more).content)
        assert answer["custom_id"] == "a" and answer["response"]["status_code"] == 200, answer
        litellm.file_delete(f.id, **more)

    def rerank():
        r = litellm.rerank(f"hosted_vllm/{model}", query="one", documents=["two", "three"], **v1)
        assert sorted(d["index"] for d in r.results) == [0, 1]

    def triton():
        more = {"messages": messages, "api_base": url + "/v2/models/ensemble/generate", "max_tokens": 8}
        assert litellm.completion(f"triton/{model}", **more).choices[0].message.content
        several(litellm.completion(f"triton/{model}", stream=True, **more))

    return [*form_checks("openai", url + "/v1"), *form_checks("hosted_vllm", url + "/v1"),
            *form_checks("anthropic", url), ("ollama_chat: chat, stream", ollama_chat), ("structured", structured),
            ("embeddings", embeddings), ("text", text), ("responses", responses), ("files, batches", batches), ("rerank", rerank),
            ("triton", triton),
            ("error", lambda: is_error(lambda: ask("openai", url + "/v1", temperature=9), "temperature", "0 to 2"))]


def instructor_(url, model):
    import instructor
    import openai

    def asks(mode):
        c = instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=mode)
        is_reply(c.chat.completions.create(model=model, response_model=reply_class(), max_retries=0, max_tokens=100,
                                           messages=[{"role": "user", "content": QUESTION}]))
    return [("tools", lambda: asks(instructor.Mode.TOOLS)), ("structured", lambda: asks(instructor.Mode.JSON_SCHEMA))]


def pydantic_ai_(url, model):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.output import NativeOutput
    from pydantic_ai.providers.openai import OpenAIProvider
    m = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
    short = {"max_tokens": 100}

    def stream():
        with pydantic_ai.Agent(m, model_settings=short).run_stream_sync(QUESTION) as r:
            several(r.stream_text(delta=True, debounce_by=None))

    return [("chat", lambda: pydantic_ai.Agent(m, model_settings=short).run_sync(QUESTION).usage), ("stream", stream),
            ("tools", lambda: is_reply(pydantic_ai.Agent(m, output_type=reply_class(), model_settings=short).run_sync(QUESTION).output)),
            ("structured", lambda: is_reply(pydantic_ai.Agent(
                m, output_type=NativeOutput(reply_class()), model_settings=short).run_sync(QUESTION).output)),
            ("error", lambda: is_error(lambda: pydantic_ai.Agent(m, model_settings={"temperature": 9}).run_sync(QUESTION),
                                       "temperature", "0 to 2"))]


# Name of the package that is asked for its version -> the module that must be there, checks, what to install.
CLIENTS = {
    "openai": ("openai", openai_, []),
    "anthropic": ("anthropic", anthropic_, []),
    "ollama": ("ollama", ollama_, []),
    "langchain-openai": ("langchain_openai", langchain_openai, []),
    "langchain-anthropic": ("langchain_anthropic", langchain_anthropic, []),
    "langchain-ollama": ("langchain_ollama", langchain_ollama, []),
    "llama-index-llms-openai-like": ("llama_index.llms.openai_like", llama_index_openai_like,
                                     ["llama-index-embeddings-openai-like"]),
    "llama-index-llms-ollama": ("llama_index.llms.ollama", llama_index_ollama, ["llama-index-embeddings-ollama"]),
    "litellm": ("litellm", litellm_, []),
    "instructor": ("instructor", instructor_, []),
    "pydantic-ai-slim": ("pydantic_ai", pydantic_ai_, ["pydantic-ai-slim[openai]"]),
}


def is_there(name):
    try:
        return importlib.util.find_spec(CLIENTS[name][0]) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def results(name, url, model):
    """[(check, None or what went wrong)]"""
    found = []
    for what, check in CLIENTS[name][1](url, model):
        try:
            check()
            found.append((what, None))
        except Exception as e:
            found.append((what, f"{type(e).__name__}: {e}"))
    return found


def run_installed(names, folder, args):
    """Each client in a venv of its own, as their versions of shared packages differ."""
    worst = 0
    for name in names:
        venv = pathlib.Path(folder) / name
        if not (venv / "bin/python").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", "-U", name, *CLIENTS[name][2]], check=True)
        worst |= subprocess.run([venv / "bin/python", __file__, "--url", args.url, "--model", args.model, "--rows",
                                 "--only", name]).returncode
    return worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://localhost:8000")
    p.add_argument("--model", required=True)
    p.add_argument("--install", metavar="FOLDER")
    p.add_argument("--only", action="append", choices=list(CLIENTS))
    p.add_argument("--rows", action="store_true", help="without the table's head")
    args = p.parse_args()
    names = args.only or list(CLIENTS)
    if not args.rows:
        print("| client | version | works | fails |\n|---|---|---|---|", flush=True)
    if args.install:
        return run_installed(names, args.install, args)
    failed = False
    for name in names:
        if not is_there(name):
            continue
        rows = results(name, args.url, args.model)
        bad = [f"{what}: {error}"[:300].replace("\n", " ") for what, error in rows if error]
        good = ", ".join(what for what, error in rows if not error)
        print(f"| `{name}` | {importlib.metadata.version(name)} | {good} | {'; '.join(bad)} |", flush=True)
        failed |= bool(bad)
    return failed


if __name__ == "__main__":
    sys.exit(main())
