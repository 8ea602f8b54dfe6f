// SPDX-License-Identifier: Apache-2.0
// Views, settings and the chat. Answers stream from /v1/chat/completions; a model without a chat
// template continues plain text through /v1/completions, a server without /v1 through /v2's
// generate_stream.
import {onStats, hurryUp, poll, el, number, headers} from "/ui/live.js";

const $ = (id) => document.getElementById(id);
const fields = ["system", "temperature", "max_tokens", "top_p", "top_k", "repetition_penalty", "seed"];
const messages = []; // {role, content, reasoning, note, view}
const plainModels = new Set(); // those that turned out to have no chat template
const plainTokens = 256; // of a text that is continued: a base model seldom ends by itself
let abort = null, stats = null;

// ---- views ----

function route() {
  const live = location.hash === "#live";
  $("chat").hidden = live;
  $("live").hidden = !live;
  for (const [id, on] of [["nav-chat", !live], ["nav-live", live]]) {
    if (on) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  document.title = live ? "Nereid: live" : "Nereid";
  document.querySelector(".skip").hidden = live;
  poll();
  if (!live && matchMedia("(pointer: fine)").matches) $("prompt").focus();
}
window.addEventListener("hashchange", route);

// ---- settings ----

const saved = (store, key, value) => { // a browser may refuse to keep anything
  try {
    if (value === undefined) return store().getItem(`nereid.${key}`);
    store().setItem(`nereid.${key}`, value);
  } catch { /* then it is not kept */ }
  return null;
};
const local = () => localStorage, session = () => sessionStorage;

for (const f of fields) {
  $(f).value = saved(local, f) || "";
  $(f).addEventListener("change", () => saved(local, f, $(f).value));
}
$("key").value = saved(session, "key") || "";
$("key").addEventListener("change", () => { saved(session, "key", $("key").value); listed = null; listModels(); });
$("model").addEventListener("change", () => { saved(local, "model", $("model").value); showDefaults(); });
$("defaults").onclick = () => { for (const f of fields) { $(f).value = ""; saved(local, f, ""); } };
if (matchMedia("(max-width: 860px)").matches) $("settings").open = false;

// ---- models ----

// What is in force where a field is empty: as /v1/models tells for each model, else these.
const general = {temperature: 0.8, top_p: 0.95, min_p: 0.05, top_k: 40, repetition_penalty: 1};
const samplings = new Map(); // of each model that /v1 lists
const samplingOf = (model) => samplings.get(model) || general;

function showDefaults() {
  for (const [f, v] of Object.entries(samplingOf($("model").value))) if ($(f)) $(f).placeholder = `${v}`;
  $("max_tokens").placeholder = stats && stats.openai && !plainModels.has($("model").value) ? "no limit" : `${plainTokens}`;
}

let listed = null; // the ready models that the list was made from

async function textModels(names) { // without /v1: the models that take text
  const list = [];
  for (const name of names) {
    const answer = await fetch(`/v2/models/${encodeURIComponent(name)}`, {headers: headers()});
    const m = answer.ok ? await answer.json() : {};
    if ((m.inputs || []).some((i) => i.name === "text_input")) list.push(name);
  }
  return list;
}

async function listModels() {
  if (!stats) return;
  const ready = [...new Set(stats.models.filter((m) => m.state === "READY").map((m) => m.name))];
  const mark = stats.unknown ? "unknown" : ready.join("\n");
  if (mark === listed) return;
  listed = mark;
  let names = [];
  try {
    if (stats.openai) {
      const answer = await fetch("/v1/models", {headers: headers()});
      if (answer.status === 401) {
        $("key-row").hidden = false;
        fail($("key").value ? "The server does not accept this API key." : "This server asks for an API key: enter it in the settings.");
        $("settings").open = true;
        return;
      }
      const models = answer.ok ? (await answer.json()).data : [];
      names = models.map((m) => m.id);
      for (const m of models) if (m.sampling) samplings.set(m.id, m.sampling);
      fail("");
    } else {
      names = await textModels(ready);
    }
  } catch {
    listed = null; // again with the next statistics
    return;
  }
  if (!names.length && stats.unknown) listed = null; // one may become ready
  names.sort((a, b) => (b === "ensemble") - (a === "ensemble") || a.localeCompare(b));
  const wanted = $("model").value || saved(local, "model");
  $("model").replaceChildren(...names.map((n) => el("option", {value: n, textContent: n})));
  if (!names.length) $("model").append(el("option", {value: "", textContent: "No model is ready"}));
  if (names.includes(wanted)) $("model").value = wanted;
  showDefaults();
  update();
}

onStats((s) => {
  stats = s || {models: [], openai: true, needs_key: false, unknown: true};
  s = stats;
  if (s.needs_key) $("key-row").hidden = false;
  listModels();
});

// ---- text ----

// `code`, **bold** and *emphasis* within a line; everything else as it is.
function inline(text) {
  const out = [];
  let last = 0;
  for (const m of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])/g)) {
    out.push(text.slice(last, m.index));
    out.push(m[1] !== undefined ? el("code", {textContent: m[1]}) : m[2] !== undefined ? el("strong", {textContent: m[2]}) : el("em", {textContent: m[3]}));
    last = m.index + m[0].length;
  }
  out.push(text.slice(last));
  return out;
}

// The part of Markdown that models write: code blocks, lists, headings, paragraphs.
function render(text) {
  const out = [], lines = text.split("\n");
  let paragraph = [], list = null;
  const flush = () => {
    if (paragraph.length) out.push(el("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
    list = null;
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*(```+|~~~+)/);
    const item = line.match(/^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/);
    const heading = line.match(/^#{1,6}\s+(.*)$/);
    if (fence) {
      const code = [];
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) code.push(lines[i]);
      flush();
      const pre = el("pre", {tabIndex: 0}, el("code", {textContent: code.join("\n")}));
      pre.setAttribute("role", "group"); // it scrolls, so the keyboard reaches it
      pre.setAttribute("aria-label", "Code");
      out.push(pre);
    } else if (item) {
      const tag = item[1] === undefined ? "UL" : "OL";
      if (!list || list.tagName !== tag) {
        flush();
        list = el(tag.toLowerCase());
        if (item[1] !== undefined) list.start = Number(item[1]);
        out.push(list);
      }
      list.append(el("li", {}, ...inline(item[2])));
    } else if (heading) {
      flush();
      out.push(el("h4", {}, ...inline(heading[1])));
    } else if (!line.trim()) {
      if (list && /^\s*(?:[-*+]|\d+[.)])\s|^\s{2,}\S/.test(lines[i + 1] || "")) continue; // a list with gaps
      flush();
    } else if (list && /^\s{2,}/.test(line)) {
      list.lastChild.append("\n", ...inline(line.trim()));
    } else {
      if (list) flush();
      paragraph.push(line);
    }
  }
  flush();
  return out;
}

// The end of the part whose rendering later text cannot change: behind an empty line, outside of
// code and lists.
function settled(text, from) {
  for (let i = text.lastIndexOf("\n\n"); i > from; i = text.lastIndexOf("\n\n", i - 1)) {
    const part = text.slice(from, i), rest = text.slice(i + 2);
    const fences = part.match(/^\s*(?:```|~~~)/gm) || [];
    if (/^[^\s\d*+-]/.test(rest) && fences.length % 2 === 0) return i + 2;
  }
  return from;
}

// A long answer is rendered piece by piece, and once as a whole at its end.
function paintText(m) {
  const t = m.view.text;
  if (m.done) {
    t.replaceChildren(...render(m.content));
    return;
  }
  for (const node of m.view.tail || []) node.remove();
  const from = m.view.settled || 0, to = settled(m.content, from);
  if (to > from) t.append(...render(m.content.slice(from, to)));
  m.view.settled = to;
  m.view.tail = render(m.content.slice(to));
  t.append(...m.view.tail);
}

// ---- messages on the page ----

function newView(m) {
  const text = el("div", {className: "text"}), meta = el("p", {className: "meta", hidden: true});
  const root = el("article", {className: `msg ${m.role}`}, el("p", {className: "who", textContent: m.role === "user" ? "You" : m.model}), text, meta);
  root.setAttribute("aria-label", m.role === "user" ? "You" : `Answer of ${m.model}`);
  $("empty").hidden = true;
  $("log").append(root);
  return {root, text, meta};
}

function paint(m) {
  const atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
  if (m.role === "user") {
    m.view.text.textContent = m.content;
  } else {
    paintText(m);
    if (m.reasoning) {
      if (!m.view.thought) {
        m.view.thought = el("div");
        m.view.root.insertBefore(el("details", {className: "reasoning"}, el("summary", {textContent: "Reasoning"}), m.view.thought), m.view.text);
      }
      m.view.thought.textContent = m.reasoning;
    }
  }
  m.view.meta.hidden = !m.note;
  m.view.meta.replaceChildren(...(m.note || []).map((t) => el("span", {textContent: t})));
  if (m.done && m.content && navigator.clipboard) {
    const copy = el("button", {type: "button", className: "plain", textContent: "Copy"});
    copy.onclick = async () => { await navigator.clipboard.writeText(m.content); copy.textContent = "Copied"; };
    m.view.meta.append(copy);
  }
  if (atEnd || m.role === "user") $("log").scrollTop = $("log").scrollHeight;
}

function fail(text) {
  $("chat-error").hidden = !text;
  if ($("chat-error").textContent !== text) $("chat-error").textContent = text;
}

function update() {
  const busy = abort !== null;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = !$("model").value;
  $("again").disabled = busy || !messages.length;
}

// ---- answers ----

const setting = (id) => {
  const v = $(id).value.trim();
  return v === "" || !Number.isFinite(Number(v)) ? undefined : Number(v);
};

async function* events(answer) { // the data of server-sent events
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    rest += value || "";
    const lines = rest.split(/\r?\n/);
    rest = done ? "" : lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    if (done) return;
  }
}

async function refuse(answer) {
  const text = (await answer.text()).replace(/^data: /, ""); // a stream tells it as an event
  let e = {message: text || `error ${answer.status}`};
  try {
    const body = JSON.parse(text).error;
    e = typeof body === "string" ? {message: body} : body || e;
  } catch { /* it is plain text */ }
  if (answer.status === 401) { $("key-row").hidden = false; $("settings").open = true; }
  throw Object.assign(new Error(e.message), {status: answer.status, param: e.param});
}

// Yields {text}, {reasoning}, {usage}, {finish}. `input`: messages, or a prompt that is continued.
async function* openai(path, model, input, signal) {
  const body = {model, ...input, stream: true, stream_options: {include_usage: true}};
  for (const f of fields.slice(1)) if (setting(f) !== undefined) body[f] = setting(f);
  const answer = await fetch(path, {method: "POST", signal, headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(body)});
  if (!answer.ok) await refuse(answer);
  for await (const data of events(answer)) {
    if (data === "[DONE]") return;
    const o = JSON.parse(data);
    if (o.error) throw new Error(o.error.message);
    if (o.usage) yield {usage: o.usage};
    const c = (o.choices || [])[0];
    if (!c) continue;
    const delta = c.delta || {content: c.text};
    if (delta.reasoning_content) yield {reasoning: delta.reasoning_content};
    if (delta.content) yield {text: delta.content};
    if (c.finish_reason) yield {finish: c.finish_reason};
  }
}

async function* generate(model, text, signal, stream = true) {
  const s = {...general};
  for (const f of Object.keys(s)) if ($(f) && setting(f) !== undefined) s[f] = setting(f);
  const body = {text_input: text, stream, max_tokens: setting("max_tokens") || plainTokens, bad_words: "", stop_words: "",
    exclude_input_in_output: true, repetition_penalty: s.repetition_penalty, top_k: s.top_k,
    random_seed: setting("seed") ?? Math.floor(Math.random() * 2 ** 32)};
  if (s.temperature > 0) Object.assign(body, {temperature: s.temperature, top_p: s.top_p, min_p: s.min_p}); // top_p: it is drawn
  else body.top_k = 1;
  const answer = await fetch(`/v2/models/${encodeURIComponent(model)}/generate_stream`, {method: "POST", signal, headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(body)});
  if (!answer.ok) {
    try {
      await refuse(answer);
    } catch (e) {
      if (!stream || !/decoupled/.test(e.message)) throw e;
      yield* generate(model, text, signal, false); // this model answers in one piece
      return;
    }
  }
  for await (const data of events(answer)) {
    const o = JSON.parse(data);
    if (o.error) throw new Error(o.error);
    if (o.text_output) yield {text: o.text_output};
  }
}

// The stream of an answer: chat where the model can, else its text continued.
async function* answerOf(m, list, signal) {
  const text = list.at(-1).content;
  const plain = () => {
    m.continues = "no chat template: text continued";
    return openai("/v1/completions", m.model, {prompt: text, max_tokens: plainTokens}, signal);
  };
  if (!stats || !stats.openai) {
    m.continues = "text continued";
    return yield* generate(m.model, text, signal);
  }
  if (plainModels.has(m.model)) return yield* plain();
  try {
    yield* openai("/v1/chat/completions", m.model, {messages: list}, signal);
  } catch (e) {
    const noTemplate = e.status === 400 && e.param === "messages" && /template/.test(e.message);
    if (!noTemplate || m.content) throw e;
    plainModels.add(m.model);
    showDefaults();
    yield* plain();
  }
}

function note(m, t0, t1, pieces, usage, finish) {
  const tokens = usage ? usage.completion_tokens : pieces, about = usage ? "" : "≈\u202f";
  const seconds = (performance.now() - t1) / 1000, out = [];
  if (!t1) return null;
  out.push(`${about}${number(tokens)} tokens`);
  if (tokens > 1 && seconds > 0) out.push(`${about}${number((tokens - 1) / seconds, 1)} tokens/s`);
  out.push(`first after ${number(t1 - t0)} ms`);
  if (usage) {
    const cached = (usage.prompt_tokens_details || {}).cached_tokens;
    out.push(`prompt ${number(usage.prompt_tokens)} tokens${cached ? `, ${number(cached)} cached` : ""}`);
  }
  if (m.continues) out.push(m.continues);
  if (finish === "length") out.push("cut at the token limit");
  if (finish === "stopped") out.push("stopped");
  return out;
}

async function run() {
  const list = messages.map((m) => ({role: m.role, content: m.content}));
  if ($("system").value.trim()) list.unshift({role: "system", content: $("system").value.trim()});
  const m = {role: "assistant", model: $("model").value, content: "", reasoning: "", note: null};
  m.view = newView(m);
  m.view.root.classList.add("busy");
  m.view.root.setAttribute("aria-busy", "true"); // screen readers wait for the end
  messages.push(m);
  $("log").scrollTop = $("log").scrollHeight;
  abort = new AbortController();
  fail("");
  update();
  hurryUp(true);
  const t0 = performance.now();
  let t1 = 0, pieces = 0, usage = null, finish = "", frame = 0;
  const soon = () => { frame = frame || requestAnimationFrame(() => { frame = 0; m.note = note(m, t0, t1, pieces, null, ""); paint(m); }); };
  try {
    for await (const e of answerOf(m, list, abort.signal)) {
      if (e.usage) usage = e.usage;
      if (e.finish) finish = e.finish;
      if (e.text === undefined && e.reasoning === undefined) continue;
      t1 = t1 || performance.now();
      pieces++;
      m.content += e.text || "";
      m.reasoning += e.reasoning || "";
      soon();
    }
    if (!t1) fail("The model ended its answer at once.");
  } catch (e) {
    if (abort.signal.aborted) finish = "stopped";
    else fail(e instanceof TypeError ? "The connection to the server broke." : e.message);
  }
  cancelAnimationFrame(frame);
  abort = null;
  m.done = true;
  m.note = note(m, t0, t1, pieces, usage, finish);
  m.view.root.classList.remove("busy");
  m.view.root.removeAttribute("aria-busy");
  if (m.content || m.reasoning) {
    paint(m);
  } else {
    m.view.root.remove();
    if (messages.at(-1) === m) messages.pop();
  }
  hurryUp(false);
  update();
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || abort || !$("model").value) return;
  if (messages.length && messages.at(-1).role === "user") { // its answer failed: ask anew
    messages.at(-1).view.root.remove();
    messages.pop();
  }
  const m = {role: "user", content: text};
  m.view = newView(m);
  messages.push(m);
  paint(m);
  $("prompt").value = "";
  grow();
  run();
}

function grow() { // the box is as high as its text
  const p = $("prompt");
  p.style.height = "auto";
  p.style.height = `${p.scrollHeight}px`;
}

$("composer").addEventListener("submit", (e) => { e.preventDefault(); send(); });
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
});
document.addEventListener("keydown", (e) => { if (e.key === "Escape" && abort) abort.abort(); });
$("stop").onclick = () => { if (abort) abort.abort(); $("prompt").focus(); };
$("new").onclick = () => {
  if (abort) abort.abort();
  for (const m of messages.splice(0)) m.view.root.remove();
  $("empty").hidden = false;
  fail("");
  update();
  $("prompt").focus();
};
$("again").onclick = () => {
  while (messages.length && messages.at(-1).role === "assistant") messages.pop().view.root.remove();
  if (messages.length) run();
};

update();
route();
