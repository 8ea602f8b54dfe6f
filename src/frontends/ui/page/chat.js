// SPDX-License-Identifier: Apache-2.0
// The page's conductor: views, the conversation that is shown, answers under way, keys. What it
// conducts: attach.js (files), settings.js, sidebar.js (the list), talk.js (the messages), store.js (the browser's memory), api.js
// (the server), live.js (the other view).
import {$, base, button, el, kept, local, number} from "./dom.js";
import {ask} from "./api.js";
import {MAX_FILES, contentOf, readFile, whole} from "./attach.js";
import {hurryUp, onStats, poll} from "./live.js";
import {copyText} from "./markdown.js";
import {showPulls, startPulls} from "./pull.js";
import {askForKey, forgetModels, modelOf, params, refreshModels, sees, showDefaults, startOrders} from "./settings.js";
import {choose, has, importFile, keep, neighbour, startList, written} from "./sidebar.js";
import {addNode, leafOf, newConversation, openStore, pathTo, removeBranch} from "./store.js";
import {editNode, isShown, layout, paint, settle, startTalk, toEnd} from "./talk.js";
import {t} from "./words.js";

const SAVE_MS = 2000; // an answer that streams is kept this often

let conv = null; // what is shown; null: nothing yet
let stats = null, attached = [], reading = 0;
const path = new URL(base).pathname; // several servers behind one name keep their conversations apart
const opening = openStore(`nereid${path === "/" ? "" : path}`);
const runs = new Map(); // node -> {conv, abort}: answers under way, also of conversations that are not shown

const runsHere = () => [...runs].filter(([, r]) => conv && r.conv.id === conv.id);
const redraw = () => { layout(conv, new Set(runsHere().map(([n]) => n.id))); update(); };

// ---- views ----

const narrow = matchMedia("(max-width: 860px)");
const isLive = () => location.hash === "#live";

function show(id, on, keepIt = true) {
  const [panel, opener] = id === "sidebar" ? ["sidebar", "show-list"] : ["panel", "show-settings"];
  $(panel).hidden = !on;
  $(opener).setAttribute("aria-expanded", String(on));
  $("chat").classList.toggle(`with-${panel}`, on);
  if (narrow.matches) {
    if (on) show(id === "sidebar" ? "settings" : "sidebar", false, false);
  } else if (keepIt) {
    kept(local, `show-${panel}`, on ? "1" : "0");
  }
}
const toggle = (id) => {
  const panel = $(id === "sidebar" ? "sidebar" : "panel");
  if (isLive()) location.hash = "chat";
  show(id, panel.hidden);
  if (!panel.hidden) [...panel.querySelectorAll("button, input, select")].find((e) => !e.disabled && e.offsetParent).focus();
};
function arrange() {
  show("sidebar", !narrow.matches && kept(local, "show-sidebar") !== "0", false);
  show("settings", !narrow.matches && (kept(local, "show-panel") ?? (innerWidth > 1180 ? "1" : "0")) !== "0", false);
}
narrow.addEventListener("change", arrange);
$("show-list").onclick = () => toggle("sidebar");
$("show-settings").onclick = () => toggle("settings");
$("show-help").onclick = () => $("help").showModal();
addEventListener("showsettings", () => show("settings", true, false));

const toPrompt = () => { if (matchMedia("(pointer: fine)").matches) $("prompt").focus(); };

function route() {
  const live = isLive();
  $("chat").hidden = live;
  $("live").hidden = !live;
  for (const [id, on] of [["nav-chat", !live], ["nav-live", live]]) {
    if (on) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  name();
  document.querySelector(".skip").hidden = live;
  poll();
  if (!live) toPrompt();
}
addEventListener("hashchange", route);

const name = () => { document.title = isLive() ? t("Nereid: live") : conv && conv.title ? `${conv.title} – Nereid` : "Nereid"; };

// ---- what the server says ----

onStats((s) => {
  stats = s || {models: [], engines: [], openai: true, needs_key: false, unknown: true};
  if (stats.needs_key) $("key-row").hidden = false;
  refreshModels(stats, fail, () => { showPulls(stats); update(); poll(); }); // what can be asked is part of the state
  meter();
});
addEventListener("keychange", () => { if (stats) refreshModels(stats, fail, update); });
$("model").addEventListener("change", () => { if (stats) showPulls(stats); });
for (const id of ["model", "beside"]) $(id).addEventListener("change", () => { showDefaults(stats && stats.openai); update(); });

function fail(text) {
  $("chat-error").hidden = !text;
  if ($("chat-error").textContent !== text) $("chat-error").textContent = text;
}

function update() {
  const busy = runsHere().length > 0;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = !$("model").value || reading > 0;
  meter();
  name();
}

// How much of the model's sequence the conversation takes: what the last answer counted, and about what is typed.
function meter() {
  const engines = stats && stats.engines || [], model = $("model").value;
  const engine = engines.find((e) => e.name === (modelOf(model).parent || model)) || (engines.length === 1 ? engines[0] : null);
  const max = engine && engine.max_seq_len, path = conv ? pathTo(conv) : [];
  $("context").hidden = !max;
  if (!max) return;
  const counted = path.findLastIndex((n) => n.tokens);
  const typed = path.slice(counted + 1).reduce((sum, n) => sum + whole(n).length, whole({content: $("prompt").value, files: attached}).length);
  const used = (counted < 0 ? 0 : path[counted].tokens) + Math.ceil(typed / 4);
  $("context-meter").value = Math.min(1, used / max);
  $("context-meter").textContent = $("context-meter").title = t("{n} of {max} tokens", {n: number(used), max: number(max)});
  $("context-text").textContent = `${typed ? "≈\u202f" : ""}${t("{n} of {max} tokens", {n: number(used), max: number(max)})}`;
}

// ---- answers ----

function messagesOf(c, id) {
  return pathTo(c, id).map((n) => {
    if (n.role === "tool") return {role: "tool", tool_call_id: n.callId, content: n.content};
    const m = {role: n.role, content: contentOf(n)};
    if (n.calls && n.calls.length) m.tool_calls = n.calls.map((k) => ({id: k.id, type: "function", function: {name: k.name, arguments: k.arguments}}));
    return m;
  });
}

function noteOf(r) {
  const tokens = r.usage ? r.usage.completion_tokens : r.pieces, about = r.usage ? "" : "≈\u202f";
  const seconds = (performance.now() - r.t1) / 1000, out = [];
  if (!r.t1) return [];
  out.push(about + t("{n} tokens", {n: number(tokens)}));
  if (tokens > 1 && seconds > 0) out.push(about + t("{n} tokens/s", {n: number((tokens - 1) / seconds, 1)}));
  out.push(t("first after {n} ms", {n: number(r.t1 - r.t0)}));
  if (r.usage) {
    const cached = (r.usage.prompt_tokens_details || {}).cached_tokens;
    out.push(t("prompt {n} tokens", {n: number(r.usage.prompt_tokens)}) + (cached ? t(", {n} cached", {n: number(cached)}) : ""));
  }
  if (r.continued) out.push(r.continued);
  if (r.finish === "length") out.push(t("cut at the token limit"));
  if (r.finish === "stopped") out.push(t("stopped"));
  return out;
}

// Asks for one answer below `parent`, or, with `node`, for more of that one. Resolves when it is over.
async function run(c, parent, model, fields, {node = null, group = 0} = {}) {
  const more = node !== null;
  const messages = messagesOf(c, more ? node.id : parent);
  const n = node || addNode(c, parent, {role: "assistant", model, content: "", ...(group ? {group} : {}), ...(fields.response_format ? {json: true} : {})});
  const r = {conv: c, abort: new AbortController(), t0: performance.now(), t1: 0, pieces: 0, usage: null, finish: "", continued: ""};
  runs.set(n, r);
  hurryUp(true);
  if (isShown(c)) { redraw(); toEnd(); }
  let frame = 0, saved = performance.now();
  const soon = () => { frame = frame || requestAnimationFrame(() => { frame = 0; n.note = noteOf(r); if (isShown(c)) paint(n, true); }); };
  try {
    for await (const e of ask({model, messages, params: fields, chat: !stats || stats.openai, more}, r.abort.signal)) {
      if (e.usage) r.usage = e.usage;
      if (e.finish) r.finish = e.finish;
      if (e.continued) { r.continued = e.continued; showDefaults(stats && stats.openai); }
      if (e.text === undefined && e.reasoning === undefined && e.call === undefined) continue;
      r.t1 = r.t1 || performance.now();
      r.pieces++;
      n.content += e.text || "";
      if (e.reasoning) n.reasoning = (n.reasoning || "") + e.reasoning;
      if (e.call) addCall(n, e.call);
      soon();
      if (performance.now() - saved > SAVE_MS && has(c.id)) { saved = performance.now(); keep(c); }
    }
    if (!r.t1 && !more) failIn(c, t("The model ended its answer at once."));
  } catch (e) {
    if (r.abort.signal.aborted) r.finish = "stopped";
    else {
      if (e.status === 401) askForKey();
      failIn(c, e instanceof TypeError ? t("The connection to the server broke.") : e.message);
    }
  }
  cancelAnimationFrame(frame);
  runs.delete(n);
  n.note = noteOf(r);
  if (r.usage) n.tokens = r.usage.prompt_tokens + r.usage.completion_tokens;
  if (n.calls) n.calls = n.calls.filter((k) => k);
  hurryUp(runs.size > 0);
  if (r.gone || !has(c.id)) return; // it was deleted meanwhile
  c.changed = Date.now();
  if (!n.content && !n.reasoning && !(n.calls || []).length) removeBranch(c, n.id);
  if (isShown(c)) {
    settle(n);
    redraw();
  }
  await keep(c);
}

function addCall(n, piece) {
  n.calls = n.calls || [];
  const call = n.calls[piece.index] = n.calls[piece.index] || {id: "", name: "", arguments: ""};
  call.id = call.id || piece.id;
  call.name = call.name || piece.name;
  call.arguments += piece.arguments;
}

const failIn = (c, text) => { if (isShown(c)) fail(text); };

// The settings as fields of a request; null: one of them is wrong, and the page says so.
function fieldsNow() {
  try {
    fail("");
    return params();
  } catch (e) {
    if (!e.field) throw e;
    show("settings", true, false);
    $(e.field).focus();
    fail(e.message);
    return null;
  }
}

// One answer, or two beside each other where a second model is chosen.
async function answer(parent) {
  const model = $("model").value, second = $("beside-row").hidden ? "" : $("beside").value, c = conv, fields = fieldsNow();
  if (!fields || !model) return;
  if (!second) return run(c, parent, model, fields);
  const group = c.next, first = run(c, parent, model, fields, {group}), head = c.head;
  const other = run(c, parent, second, fields, {group});
  c.head = head; // the first one is gone on with, until another is chosen
  redraw();
  await Promise.all([first, other]);
}

function send() {
  const text = $("prompt").value.trim();
  if ((!text && !attached.length) || reading || runsHere().length || !$("model").value || !fieldsNow()) return;
  if (!conv) conv = newConversation();
  const head = conv.nodes[conv.head];
  if (head && head.role === "user") removeBranch(conv, head.id); // its answer failed: ask anew
  const n = addNode(conv, conv.nodes[conv.head] ? conv.head : 0, {role: "user", content: text, ...(attached.length ? {files: attached} : {})});
  attached = [];
  $("prompt").value = "";
  showFiles();
  grow();
  keep(conv);
  choose(conv.id);
  redraw();
  answer(n.id);
}

const stop = () => { for (const [, r] of runsHere()) r.abort.abort(); };
const lastOf = (role) => conv ? pathTo(conv).findLast((n) => n.role === role) : undefined;

startTalk({
  edit(n, text) {
    if (runsHere().length) return;
    const copy = addNode(conv, n.parent, {role: n.role, content: text, ...(n.files ? {files: n.files} : {}), ...(n.model ? {model: n.model} : {}), ...(n.json ? {json: true} : {})});
    keep(conv);
    redraw();
    if (n.role === "user") answer(copy.id);
  },
  again(n) {
    if (runsHere().length) return;
    answer(n.role === "user" ? n.id : n.parent);
  },
  more(n) {
    const fields = fieldsNow();
    if (fields && !runsHere().length) run(conv, n.parent, n.model && modelOf(n.model).id ? n.model : $("model").value, fields, {node: n});
  },
  remove(n) {
    if (runsHere().length) return;
    removeBranch(conv, n.id);
    keep(conv);
    redraw();
    toPrompt();
  },
  select(id) {
    conv.head = leafOf(conv, id);
    keep(conv);
    redraw();
  },
  results(n, texts) {
    let parent = n.id;
    n.calls.forEach((c, i) => { parent = addNode(conv, parent, {role: "tool", callId: c.id, name: c.name, content: texts[i]}).id; });
    keep(conv);
    answer(parent);
  },
});

// ---- conversations ----

async function open(id) {
  await written(); // the list shows a conversation before it is kept
  const running = [...runs.values()].find((r) => r.conv.id === id); // its newest state is not kept yet
  const c = running ? running.conv : await (await opening).get(id);
  if (!c) return;
  conv = c;
  fail("");
  choose(id);
  if (narrow.matches) show("sidebar", false);
  if (isLive()) location.hash = "chat";
  redraw();
  toEnd();
  toPrompt();
}

function fresh() {
  conv = null;
  fail("");
  choose("");
  if (narrow.matches) show("sidebar", false);
  redraw();
  $("prompt").focus();
}

const listEvents = {
  open,
  gone() {
    for (const [, r] of conv ? runsHere() : []) { r.gone = true; r.abort.abort(); }
    fresh();
  },
  renamed(id, title) {
    for (const c of [conv, ...[...runs.values()].map((r) => r.conv)]) if (c && c.id === id) Object.assign(c, {title, named: true});
    name();
  },
  async changed(id) { // by another tab
    if (!conv || runsHere().length || (id && id !== conv.id)) return;
    const c = await (await opening).get(conv.id);
    if (!c) return fresh();
    if (c.changed === conv.changed && c.head === conv.head) return;
    conv = c;
    layout(null, new Set());
    redraw();
  },
};

addEventListener("pagehide", () => { for (const c of new Set([...runs.values()].filter((r) => !r.gone).map((r) => r.conv))) keep(c); });

// ---- attachments ----

function showFiles() {
  $("files").hidden = !attached.length;
  $("files").replaceChildren(...attached.map((f) => el("li", {}, ...(f.image ? [el("img", {src: f.image, alt: ""})] : []), f.name, button("✕", () => {
    attached = attached.filter((x) => x !== f);
    showFiles();
    $("prompt").focus();
  }, {className: "icon", label: t("Remove {name}", {name: f.name})}))));
  meter();
}

// Files are read one after the other; sending waits for them.
async function attach(files) {
  reading++;
  update();
  for (const file of files) {
    if (attached.length >= MAX_FILES) { fail(t("At most {n} files can be attached.", {n: MAX_FILES})); break; }
    try {
      const {note, ...f} = await readFile(file, sees($("model").value));
      attached = [...attached, f];
      fail(note || "");
    } catch (e) {
      fail(e.message);
    }
    showFiles();
  }
  reading--;
  update();
  $("prompt").focus();
}

$("attach").onclick = () => $("attach-files").click();
$("attach-files").addEventListener("change", () => { const list = [...$("attach-files").files]; $("attach-files").value = ""; attach(list); });
$("chat").addEventListener("dragover", (e) => { if ([...e.dataTransfer.types].includes("Files")) e.preventDefault(); });
$("chat").addEventListener("drop", (e) => {
  const list = [...e.dataTransfer.files];
  if (!list.length) return;
  e.preventDefault();
  if (e.target instanceof Element && e.target.closest("#sidebar")) importFile(list[0]);
  else attach(list);
});
$("prompt").addEventListener("paste", (e) => {
  const list = [...e.clipboardData.files];
  if (list.length) { e.preventDefault(); attach(list); }
});

// ---- keys ----

function grow() { // the box is as high as its text
  const p = $("prompt");
  p.style.height = "auto";
  p.style.height = `${p.scrollHeight}px`;
  meter();
}

$("composer").addEventListener("submit", (e) => { e.preventDefault(); send(); });
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (e) => {
  if (e.isComposing || e.altKey) return;
  if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); send(); }
  if (e.key === "ArrowUp" && !$("prompt").value) {
    const n = lastOf("user");
    if (n && !runsHere().length) { e.preventDefault(); editNode(n.id, conv); }
  }
});
$("stop").onclick = () => { stop(); $("prompt").focus(); };
$("new").onclick = fresh;

const alt = {
  KeyN: () => { if (isLive()) location.hash = "chat"; fresh(); },
  KeyR: () => { const n = conv && conv.nodes[conv.head]; if (n && !runsHere().length) answer(n.role === "user" ? n.id : n.parent); },
  KeyC: () => { const n = lastOf("assistant"); if (n) copyText(n.content); },
  KeyL: () => toggle("sidebar"),
  KeyS: () => toggle("settings"),
  ArrowUp: () => { const id = neighbour(-1); if (id) open(id); },
  ArrowDown: () => { const id = neighbour(1); if (id) open(id); },
};
document.addEventListener("keydown", (e) => {
  if ($("help").open) return;
  const typing = e.target instanceof Element && e.target.matches("input, textarea, select");
  if (e.key === "Escape") {
    if (runsHere().length) stop();
    else if (narrow.matches && (!$("sidebar").hidden || !$("panel").hidden)) {
      const opener = $("sidebar").hidden ? "show-settings" : "show-list";
      show("sidebar", false);
      show("settings", false);
      $(opener).focus();
    }
  } else if (e.altKey && !e.ctrlKey && !e.metaKey && alt[e.code]) {
    e.preventDefault();
    alt[e.code]();
  } else if ((e.ctrlKey || e.metaKey) && !e.altKey && e.code === "KeyK") {
    e.preventDefault();
    if (isLive()) location.hash = "chat";
    show("sidebar", true);
    $("search").focus();
  } else if (!typing && !e.ctrlKey && !e.metaKey && (e.key === "?" || e.key === "/")) {
    e.preventDefault();
    if (e.key === "?") $("help").showModal();
    else $("prompt").focus();
  }
});

arrange();
update();
route();
startOrders(fail, poll);
startPulls(fail, (name) => { forgetModels(name); poll(); });
startList(opening, listEvents);
