// SPDX-License-Identifier: Apache-2.0
// Asks the server how it is (GET /ui/stats) and draws the live view. Counters are cumulative, so rates
// are differences between two answers. chat.js imports this file; its listeners get null where the
// server does not tell.
import {headers} from "./api.js";
import {$, base, el, number} from "./dom.js";
import {t} from "./words.js";

const HISTORY_MS = 120000, TIMELINE_MS = 10000;
const listeners = new Set();
let timer = 0, running = false, hurry = false, previous = null, failures = 0;
let history = []; // {t, cpu, gpus: [load], engines: {key: {generated, prompt, running, waiting, kv}}}
const cards = new Map(); // of engines, by key

export const onStats = (f) => listeners.add(f);
export const hurryUp = (on) => { hurry = on; if (on) poll(); };

function rate(v) { return number(v, v > 0 && v < 10 ? 1 : 0); }

function millis(v) {
  if (v === null || v === undefined) return "–";
  if (v >= 10000) return `${number(v / 1000, 1)} s`;
  return `${number(v, v < 10 ? 2 : v < 100 ? 1 : 0)} ms`;
}

function bytes(n) {
  let k = 0;
  while (n >= 1024 && k < 4) { n /= 1024; k++; }
  return `${number(n, k && n < 100 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][k]}`;
}

function duration(ms) {
  const s = Math.floor(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60);
  return h >= 48 ? t("{n} days", {n: Math.floor(h / 24)}) : h ? `${h} h ${m % 60} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

const keyOf = (e) => `${e.model}/${e.version}`;
const isLive = () => !$("live").hidden;

// ---- asking ----

export async function poll() {
  clearTimeout(timer);
  if (running) return;
  running = true;
  try {
    const answer = await fetch(`${base}ui/stats`, {cache: "no-store"});
    if (answer.status === 403) { // the chat goes on without them
      failures++;
      show("", t("Statistics are restricted"));
      notice(t("Statistics are restricted on this server (--http-restricted-api)."));
      for (const f of listeners) f(null);
    } else if (!answer.ok) {
      throw new Error(t("Statistics: error {n}", {n: answer.status}));
    } else {
      const s = await answer.json();
      failures = 0;
      take(s);
    }
  } catch (e) {
    failures++;
    show("bad", e instanceof TypeError ? t("No connection to the server") : e.message);
    notice(e instanceof TypeError ? t("No connection to the server. Trying again.") : `${e.message}.`);
  }
  running = false;
  plan();
}

function plan() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, failures ? 3000 : isLive() || hurry ? 1000 : 4000);
}

document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : poll());

function show(state, text) {
  $("health").firstElementChild.className = `dot ${state}`;
  if ($("health-text").textContent !== text) $("health-text").textContent = text;
}

function notice(text) {
  $("live-notice").hidden = !text;
  if ($("live-notice").textContent !== text) $("live-notice").textContent = text;
}

function take(s) {
  const p = previous, seconds = p ? (s.time_ms - p.time_ms) / 1000 : 0;
  const now = {t: s.time_ms, cpu: s.cpu ? s.cpu.load : 0, gpus: s.gpus.map((g) => g.load), engines: {}};
  for (const e of s.engines) {
    const before = p && p.engines.find((o) => keyOf(o) === keyOf(e));
    const per = (name) => before && seconds > 0 && e[name] >= before[name] ? (e[name] - before[name]) / seconds : 0;
    now.engines[keyOf(e)] = {
      generated: per("generated_tokens"), prompt: per("prompt_tokens"), busy: Math.min(1, per("busy_ms") / 1000),
      running: Math.max(0, e.requests.active - e.requests.waiting), waiting: e.requests.waiting,
      kv: e.kv_blocks.max ? e.kv_blocks.used / e.kv_blocks.max : 0};
  }
  history.push(now);
  history = history.filter((h) => h.t > s.time_ms - HISTORY_MS && h.t <= s.time_ms);
  previous = s;

  const ready = s.models.filter((m) => m.state === "READY").length;
  const speed = Object.values(now.engines).reduce((sum, e) => sum + e.generated, 0);
  show(ready ? "good" : "", speed > 0 && isLive() ? t("{n} tokens/s", {n: rate(speed)}) : ready ? t("Ready") :
    $("model").value ? t("Models load when asked") : t("No model is ready")); // of several models none is in memory now
  if (isLive()) draw(s, now);
  for (const f of listeners) f(s);
}

// ---- drawing ----

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function surface(canvas) {
  const w = canvas.clientWidth, h = canvas.clientHeight, k = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(w * k) || canvas.height !== Math.round(h * k)) {
    canvas.width = Math.round(w * k);
    canvas.height = Math.round(h * k);
  }
  const g = canvas.getContext("2d");
  g.setTransform(k, 0, 0, k, 0, 0);
  g.clearRect(0, 0, w, h);
  return [g, w, h];
}

// The last two minutes of one figure; top: what the full height is at least.
function spark(canvas, pick, top) {
  const [g, w, h] = surface(canvas);
  const t1 = history.length ? history[history.length - 1].t : 0;
  const points = history.map((x) => [w * (1 - (t1 - x.t) / HISTORY_MS), pick(x)]);
  const max = Math.max(top, ...points.map((p) => p[1]));
  g.strokeStyle = css("--line");
  g.beginPath();
  g.moveTo(0, h - 0.5);
  g.lineTo(w, h - 0.5);
  g.stroke();
  if (points.length < 2) return;
  g.beginPath();
  for (const [x, v] of points) g.lineTo(x, h - 1.5 - (v / max) * (h - 4));
  g.strokeStyle = g.fillStyle = css("--accent");
  g.lineWidth = 1.5;
  g.lineJoin = "round";
  g.stroke();
  g.lineTo(w, h);
  g.lineTo(points[0][0], h);
  g.globalAlpha = 0.12;
  g.fill();
  g.globalAlpha = 1;
}

function tile(parent, title) {
  const big = el("p", {className: "big"}), sub = el("p", {className: "sub"});
  const canvas = el("canvas");
  canvas.setAttribute("aria-hidden", "true");
  parent.append(el("div", {className: "tile"}, el("h4", {textContent: title}), big, sub, canvas));
  return {set(value, unit, note, pick, top) {
    big.replaceChildren(value, el("span", {textContent: unit}));
    sub.textContent = sub.title = note || "\u00a0";
    spark(canvas, pick, top);
  }};
}

function card(parent, title) {
  const c = el("div", {className: "card"}, el("h4", {textContent: title}));
  parent.append(c);
  return c;
}

function newEngine(e) {
  const key = keyOf(e), id = `engine-${cards.size}`;
  const tiles = el("div", {className: "tiles"}), pair = el("div", {className: "pair"});
  const small = el("small");
  const head = el("h3", {id, textContent: e.name}, small);
  const root = el("section", {}, head, tiles, pair);
  root.setAttribute("aria-labelledby", id);
  const times = card(pair, t("Latency of the last minute")), steps = card(pair, t("Steps of the engine"));
  const body = el("tbody"), row = {};
  for (const [name, text] of [["first_token_ms", t("First token")], ["inter_token_ms", t("Between tokens")], ["step_ms", t("Step")]]) {
    row[name] = [0, 1, 2, 3].map(() => el("td", {className: "n"}));
    body.append(el("tr", {}, el("th", {scope: "row", textContent: text}), ...row[name]));
  }
  times.append(el("div", {className: "scroll-plain"}, el("table", {}, el("thead", {}, el("tr", {},
    el("th", {scope: "col", textContent: t("Time")}),
    ...["p50", "p90", "p99", t("Count")].map((s) => el("th", {scope: "col", className: "n", textContent: s})))), body)));
  const canvas = el("canvas"), legend = el("p", {className: "legend"});
  canvas.setAttribute("role", "img");
  steps.append(canvas, legend);
  $("engines").append(root);
  return {key, root, small, row, canvas, legend,
    generated: tile(tiles, t("Generated")), prompt: tile(tiles, t("Prompts")), running: tile(tiles, t("Running")),
    waiting: tile(tiles, t("Waiting")), kv: tile(tiles, t("KV cache"))};
}

// One bar for each step, as wide as it took and as high as the logarithm of its tokens.
function timeline(c, e, now) {
  const s = e.steps, end = Math.max(now, e.last_step_ms);
  const bars = [];
  for (let i = s.n - 1, t = e.last_step_ms; i >= 0 && t > end - TIMELINE_MS; i--) {
    bars.push({from: t - s.ms[i], to: t, prompt: s.prompt_tokens[i], tokens: s.prompt_tokens[i] + s.generated_tokens[i]});
    t -= s.ms[i] + s.idle_ms[i];
  }
  // With more steps than the server remembers, the view shows as far back as it does.
  const full = bars.length === s.n && s.first > 0;
  const begin = full && bars.length ? Math.max(end - TIMELINE_MS, bars[bars.length - 1].from) : end - TIMELINE_MS;
  const [g, w, h] = surface(c.canvas);
  const base = h - 16, span = end - begin;
  const top = Math.max(Math.log2(1 + 16), ...bars.map((b) => Math.log2(1 + b.tokens)));
  const gen = css("--accent"), ctx = css("--warm");
  let busy = 0, prompts = 0;
  for (const b of bars) {
    const from = Math.max(b.from, begin), x = w * (from - begin) / span, width = w * (b.to - from) / span;
    const height = Math.max(3, (base - 2) * Math.log2(1 + b.tokens) / top);
    busy += b.to - from;
    prompts += b.prompt > 0;
    g.fillStyle = b.prompt > 0 ? ctx : gen;
    g.fillRect(x, base - height, Math.max(0.7, width - (width > 3 ? 1 : 0)), height);
  }
  g.fillStyle = css("--line");
  g.fillRect(0, base, w, 1);
  g.fillStyle = css("--soft");
  g.font = "11px system-ui, sans-serif";
  g.fillText(t("{n} s ago", {n: number(span / 1000, 1)}), 0, h - 2);
  g.textAlign = "right";
  g.fillText(t("now"), w, h - 2);
  g.textAlign = "left";
  const text = t("{n} steps in {s} s, {k} with prompts, busy {p}", {n: bars.length, s: number(span / 1000, 1), k: prompts, p: `${number(100 * busy / span)}\u202f%`});
  c.canvas.setAttribute("aria-label", t("Timeline of the engine: {text}", {text}));
  c.legend.replaceChildren(el("span", {}, el("i", {className: "gen"}), t("generation")),
    el("span", {}, el("i", {className: "ctx"}), t("with prompts")), el("span", {textContent: text}));
}

function drawEngine(e, now, time) {
  const key = keyOf(e);
  if (!cards.has(key)) cards.set(key, newEngine(e));
  const c = cards.get(key), pick = (name) => (h) => h.engines[key] ? h.engines[key][name] : 0;
  const memory = e.memory_bytes.gpu ? t("{n} on the GPU", {n: bytes(e.memory_bytes.gpu)}) : t("{n} in memory", {n: bytes(e.memory_bytes.cpu)});
  const more = e.memory_bytes.reserved > e.memory_bytes.cpu + e.memory_bytes.gpu ? t(" of {n} reserved", {n: bytes(e.memory_bytes.reserved)}) : "";
  c.small.textContent = `${t("{name} version {n}", {name: e.model, n: e.version})}, ${memory}${more}`;
  c.generated.set(rate(now.generated), t("tokens/s"), t("{n} in total", {n: number(e.generated_tokens)}), pick("generated"), 10);
  c.prompt.set(rate(now.prompt), t("tokens/s"), t("{n} in total", {n: number(e.prompt_tokens)}), pick("prompt"), 10);
  c.running.set(number(now.running), now.running === 1 ? t("request") : t("requests"), t("at most {n}", {n: number(e.requests.max)}), pick("running"), 4);
  c.waiting.set(number(now.waiting), now.waiting === 1 ? t("request") : t("requests"), e.paused ? t("{n} paused", {n: number(e.paused)}) : "", pick("waiting"), 4);
  c.kv.set(number(100 * now.kv, now.kv < 0.1 ? 1 : 0), "%", t("{n} of {max} blocks", {n: number(e.kv_blocks.used), max: number(e.kv_blocks.max)}), pick("kv"), 1);
  for (const [name, cells] of Object.entries(c.row)) {
    [e[name].p50, e[name].p90, e[name].p99].forEach((v, i) => { cells[i].textContent = millis(v); });
    cells[3].textContent = number(e[name].n);
  }
  timeline(c, e, time);
}

let machine = null;
function drawMachine(s) {
  if (!machine || machine.n !== s.gpus.length) {
    $("machine").replaceChildren();
    machine = {n: s.gpus.length, cpu: tile($("machine"), t("CPU")), memory: tile($("machine"), t("Memory")),
      gpus: s.gpus.map((g, i) => [tile($("machine"), t("GPU {n}", {n: i})), tile($("machine"), t("GPU {n} memory", {n: i}))])};
  }
  $("machine").parentElement.hidden = !s.cpu && !s.gpus.length;
  if (s.cpu) {
    const m = s.cpu.memory_used_bytes / s.cpu.memory_total_bytes;
    machine.cpu.set(number(100 * s.cpu.load), "%", t("all cores"), (h) => h.cpu, 1);
    machine.memory.set(number(100 * m), "%", t("{n} of {max}", {n: bytes(s.cpu.memory_used_bytes), max: bytes(s.cpu.memory_total_bytes)}), () => m, 1);
  }
  s.gpus.forEach((g, i) => {
    const m = g.memory_used_bytes / g.memory_total_bytes;
    machine.gpus[i][0].set(number(100 * g.load), "%", g.power_watts === null ? "" : t("{n} of {max} W", {n: number(g.power_watts), max: number(g.power_limit_watts)}), (h) => h.gpus[i] || 0, 1);
    machine.gpus[i][1].set(number(100 * m), "%", t("{n} of {max}", {n: bytes(g.memory_used_bytes), max: bytes(g.memory_total_bytes)}), () => m, 1);
  });
}

// ---- models ----

const pending = new Map(); // name -> "Loading", "Unloading"

async function control(name, verb) {
  if (verb === "unload" && !confirm(t("Unload {name}? Requests to it will be refused.", {name}))) return;
  pending.set(name, verb === "load" ? t("Loading") : t("Unloading"));
  $("control-status").textContent = `${pending.get(name)} ${name}`;
  poll();
  try {
    const answer = await fetch(`${base}v2/repository/models/${encodeURIComponent(name)}/${verb}`, {method: "POST", headers: headers()});
    const text = await answer.text();
    let message = text;
    try { message = JSON.parse(text).error || text; } catch { /* it is plain text */ }
    $("control-status").textContent = answer.ok ? `${name}: ${verb === "load" ? t("loaded") : t("unloaded")}` : `${name}: ${message}`;
  } catch {
    $("control-status").textContent = `${name}: ${t("no connection to the server")}`;
  }
  pending.delete(name);
  poll();
}

const states = {READY: ["good", t("Ready")], LOADING: ["", t("Loading")], UNLOADING: ["", t("Unloading")], UNAVAILABLE: ["bad", t("Unavailable")], "": ["", t("Not loaded")]};

function drawModels(s) {
  const body = $("models"), can = s.control === "explicit";
  $("control-note").textContent = can ? "" : t("Models are not loaded or unloaded from here: the server runs with --model-control-mode={mode}.", {mode: s.control});
  $("control-note").hidden = can;
  s.models.forEach((m, i) => {
    let r = body.children[i];
    if (!r) {
      const button = el("button", {type: "button"});
      r = el("tr", {}, el("th", {scope: "row"}), el("td"), el("td"), ...[0, 1, 2, 3].map(() => el("td", {className: "n"})), el("td", {}, button));
      button.onclick = () => control(button.dataset.name, button.dataset.verb);
      body.append(r);
    }
    const [c0, c1, c2, c3, c4, c5, c6, c7] = r.children, button = c7.firstChild;
    let [dot, text] = states[m.state] || ["", m.state];
    if (m.state === "UNAVAILABLE" && m.reason === "unloaded") [dot, text] = ["", t("Unloaded")];
    if (pending.has(m.name)) [dot, text] = ["", pending.get(m.name)];
    c0.textContent = m.name;
    c1.textContent = m.version;
    if (c2.dataset.text !== text + m.reason) {
      c2.dataset.text = text + m.reason;
      c2.replaceChildren(el("span", {className: "state"}, el("span", {className: `dot ${dot}`}), text));
      if (m.reason && m.reason !== "unloaded") c2.append(el("span", {className: "reason", textContent: m.reason}));
    }
    c3.textContent = number(m.succeeded);
    c4.textContent = number(m.failed);
    c5.textContent = number(m.pending);
    c6.textContent = m.succeeded ? millis(m.request_ms_sum / m.succeeded) : "–";
    const verb = m.state === "READY" ? "unload" : "load";
    button.hidden = !can;
    button.disabled = pending.has(m.name) || m.state === "LOADING" || m.state === "UNLOADING";
    button.dataset.name = m.name;
    button.dataset.verb = verb;
    if (button.dataset.shown !== verb + m.name) {
      button.dataset.shown = verb + m.name;
      button.textContent = verb === "load" ? t("Load") : t("Unload");
      button.setAttribute("aria-label", `${button.textContent} ${m.name}`);
    }
  });
  while (body.children.length > s.models.length) body.lastChild.remove();
}

function draw(s, now) {
  const keys = new Set(s.engines.map(keyOf));
  for (const [key, c] of cards) if (!keys.has(key)) { c.root.remove(); cards.delete(key); }
  notice(!s.metrics ? t("Metrics are off (--allow-metrics=false), so only the models are shown.") :
    !s.engines.length ? t("No language model is loaded.") : "");
  for (const e of s.engines) drawEngine(e, now.engines[keyOf(e)], s.time_ms);
  drawMachine(s);
  drawModels(s);
  $("about").textContent = t("Nereid {version}, server “{server}”, up for {time}", {version: s.version, server: s.server, time: duration(s.uptime_ms)});
}

const redraw = () => { if (previous && isLive()) draw(previous, history[history.length - 1]); };
window.addEventListener("resize", redraw);
window.addEventListener("themechange", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
