// SPDX-License-Identifier: Apache-2.0
// The settings beside the chat: fields of a request, presets, which models there are, appearance and language.
// They apply to every answer that is asked for from then on. Kept in the browser; the API key only until the tab
// is closed.
import {$, el, kept, local, session} from "./dom.js";
import {general, listModels, orderModel, plainModels, plainTokens} from "./api.js";
import {t} from "./words.js";

const numbers = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty",
  "frequency_penalty", "min_tokens", "max_time"];
const fields = [...numbers, "system", "thinking", "stop_words", "others", "schema", "tools"];
const ours = ["model", "messages", "prompt", "n", "stream", "stream_options"]; // what the page says itself
const builtIn = {
  [t("Precise: always the likeliest word")]: {temperature: "0"},
  [t("Lively: more surprises")]: {temperature: "1.1", top_p: "0.95", min_p: "0.05"},
};

// ---- fields ----

const own = () => Object.fromEntries(fields.map((f) => [f, $(f).value]).filter(([, v]) => v !== ""));
const same = (a, b) => fields.every((f) => (a[f] || "") === (b[f] || ""));

// The request's fields, without those that are empty: the model's own values hold for them. Throws what is wrong.
export function params() {
  const wrong = (id, what) => { $(id).closest("details")?.setAttribute("open", ""); throw Object.assign(new Error(what), {field: id}); };
  const json = (id, name) => {
    try {
      return JSON.parse($(id).value);
    } catch (e) {
      return wrong(id, t("{name} is not JSON: {why}", {name, why: e.message}));
    }
  };
  const out = {};
  if ($("others").value.trim()) {
    const more = json("others", t("The list of fields"));
    if (typeof more !== "object" || more === null || Array.isArray(more)) wrong("others", t("The fields must be a JSON object."));
    for (const f of ours) if (f in more) wrong("others", t("{name} is said by the page itself.", {name: f}));
    Object.assign(out, more); // a field that has a place of its own counts there
  }
  for (const f of numbers) {
    const v = $(f).value.trim();
    if (v === "" && !$(f).validity.badInput) continue;
    if (!Number.isFinite(Number(v)) || v === "") wrong(f, t("{name} is not a number.", {name: labelOf(f)}));
    out[f] = Number(v);
  }
  if ($("system").value.trim()) out.system = $("system").value.trim();
  const stop = $("stop_words").value.split("\n").filter((s) => s);
  if (stop.length) out.stop = stop;
  const thinking = $("thinking").value;
  if (thinking === "on" || thinking === "off") out.chat_template_kwargs = {enable_thinking: thinking === "on"};
  else if (thinking) out.reasoning_effort = thinking;
  if ($("schema").value.trim()) {
    const schema = json("schema", t("The schema"));
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) wrong("schema", t("The schema must be a JSON object."));
    out.response_format = Object.keys(schema).length ? {type: "json_schema", json_schema: {name: "answer", schema, strict: true}} : {type: "json_object"};
  }
  if ($("tools").value.trim()) {
    out.tools = json("tools", t("The list of tools"));
    if (!Array.isArray(out.tools)) wrong("tools", t("The tools must be a JSON list."));
  }
  return out;
}

const labelOf = (id) => document.querySelector(`label[for="${id}"]`).textContent;

// ---- presets ----

let presets = {};
try { presets = JSON.parse(kept(local, "presets")) || {}; } catch { /* not ours: begin anew */ }
if (typeof presets !== "object" || Array.isArray(presets)) presets = {};

function showPresets() {
  const now = own(), all = {[t("The model’s own values")]: {}, ...builtIn, ...presets};
  const name = Object.keys(all).find((k) => same(all[k], now));
  $("preset").replaceChildren(...(name === undefined ? [el("option", {value: "", textContent: t("As below")})] : []),
    ...Object.keys(all).map((k) => el("option", {value: k, textContent: k})));
  $("preset").value = name === undefined ? "" : name;
  $("preset-delete").hidden = !(name in presets);
  $("preset-save").hidden = name !== undefined;
}

function take(values) {
  for (const f of fields) {
    $(f).value = typeof values[f] === "string" ? values[f] : "";
    kept(local, f, $(f).value);
  }
  showPresets();
}

$("preset").addEventListener("change", () => take(presets[$("preset").value] || builtIn[$("preset").value] || {}));
$("preset-save").onclick = () => { $("preset-form").hidden = false; $("preset-name").focus(); };
$("preset-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const name = $("preset-name").value.trim();
  if (!name) return;
  presets = {...presets, [name]: own()};
  kept(local, "presets", JSON.stringify(presets));
  $("preset-form").hidden = true;
  $("preset-name").value = "";
  showPresets();
  $("preset").focus();
});
$("preset-delete").onclick = () => {
  const {[$("preset").value]: gone, ...rest} = presets;
  presets = rest;
  kept(local, "presets", JSON.stringify(presets));
  showPresets();
  $("preset").focus();
};
$("defaults").onclick = () => take({});

for (const f of fields) {
  $(f).value = kept(local, f) || "";
  $(f).addEventListener("change", () => { kept(local, f, $(f).value); showPresets(); });
}
for (const id of ["more", "shape"]) $(id).open = [...$(id).querySelectorAll("input, textarea, select")].some((x) => x.value);
showPresets();

// ---- appearance ----

$("theme").value = kept(local, "theme") || "";
$("theme").addEventListener("change", () => {
  kept(local, "theme", $("theme").value);
  if ($("theme").value) document.documentElement.dataset.theme = $("theme").value;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("themechange"));
});
$("language").value = kept(local, "language") || "";
$("language").addEventListener("change", () => { kept(local, "language", $("language").value); location.reload(); });

// ---- models ----

const models = new Map(); // what is known of each model that can be asked
let listed = null; // the ready models that the list was made from

export const modelOf = (id) => models.get(id) || {};

// Whether a model takes pictures; of one that is not loaded the server says so when it is asked.
export function sees(id) {
  const {architecture, status} = modelOf(id);
  return architecture ? architecture.input_modalities.includes("image") : Boolean(status);
}

// What is in force where a field is empty.
export function showDefaults(chat) {
  const m = modelOf($("model").value), sampling = m.sampling || (m.status ? {} : general); // not loaded: not known yet
  for (const f of Object.keys(general)) $(f).placeholder = sampling[f] === undefined ? "" : `${sampling[f]}`;
  const plain = chat && plainModels.has($("model").value);
  $("plain-note").hidden = !plain;
  $("prompt").placeholder = plain ? t("Text to continue") : t("Message");
  $("max_tokens").placeholder = chat && !plain ? t("no limit") : `${plainTokens}`;
}

const option = (value, text = value) => el("option", {value, textContent: text});

// Of a server with several models: those that are not in memory are loaded when they are asked.
const states = {unloaded: t("Not loaded"), loading: t("Loading"), sleeping: t("Asleep")};
const labelled = (id) => {
  const state = states[(modelOf(id).status || {}).value];
  return option(id, state ? `${id} · ${state}` : id);
};

function showOrder() {
  const {status} = modelOf($("model").value);
  $("load").hidden = !status || status.pinned;
  $("load").disabled = Boolean(status) && status.value === "loading";
  if (status) $("load").textContent = status.value === "unloaded" ? t("Load") : t("Unload");
}

// Loads or unloads the chosen model; it may also just be asked.
export function startOrders(tell, after) {
  $("load").onclick = async () => {
    const model = $("model").value, verb = modelOf(model).status.value === "unloaded" ? "load" : "unload";
    $("load").disabled = true;
    try {
      tell("");
      await orderModel(verb, model);
    } catch (e) {
      if (e.status === 401) askForKey();
      tell(e.message);
    }
    listed = null;
    showOrder();
    after();
  };
}

// The list is read again, also where the statistics look the same. name: what is chosen then; "": as before.
export function forgetModels(name) {
  listed = null;
  if (name) {
    kept(local, "model", name);
    $("model").value = "";
  }
}

// Fills the choice of models when the server's models changed. tell(text): an error, or "" when it is over.
export async function refreshModels(stats, tell, changed) {
  const ready = [...new Set(stats.models.filter((m) => m.state === "READY").map((m) => m.name))];
  const mark = stats.unknown ? "unknown" : stats.models.map((m) => `${m.name} ${m.state}`).join("\n");
  if (mark === listed) return;
  listed = mark;
  let list;
  try {
    list = await listModels(stats.openai, ready);
    tell("");
  } catch (e) {
    if (e.status === 401) {
      askForKey();
      tell($("key").value ? t("The server does not accept this API key.") : t("This server asks for an API key: enter it in the settings."));
    } else {
      listed = null; // again with the next statistics
    }
    return;
  }
  if (!list.length && stats.unknown) listed = null; // one may become ready
  models.clear();
  for (const m of list) {
    models.set(m.id, m);
    if (m.chat === false) plainModels.add(m.id);
    else if (m.chat) plainModels.delete(m.id); // loaded again, with a template
  }
  const names = [...models.keys()].sort((a, b) => (b === "ensemble") - (a === "ensemble") || a.localeCompare(b));
  const wanted = {model: $("model").value || kept(local, "model"), beside: $("beside").value || kept(local, "beside")};
  $("model").replaceChildren(...names.map((n) => labelled(n)));
  if (!names.length) $("model").append(option("", t("No model is ready")));
  $("beside").replaceChildren(option("", t("no other")), ...names.map((n) => labelled(n)));
  for (const id of ["model", "beside"]) if (names.includes(wanted[id])) $(id).value = wanted[id];
  $("beside-row").hidden = names.length < 2;
  showDefaults(stats.openai);
  showOrder();
  changed();
}

export function askForKey() {
  $("key-row").hidden = false;
  dispatchEvent(new Event("showsettings"));
}

$("key").value = kept(session, "key") || "";
$("key").addEventListener("change", () => { kept(session, "key", $("key").value); listed = null; dispatchEvent(new Event("keychange")); });
for (const id of ["model", "beside"]) $(id).addEventListener("change", () => { kept(local, id, $(id).value); showOrder(); });
