// SPDX-License-Identifier: Apache-2.0
// The list of conversations: search, rename, delete, export, import. chat.js gives it the store and what happens
// when one is chosen. Other tabs of this page are told of changes.
import {$, button, download, el} from "./dom.js";
import {exportText, importText, LIMITS, matches, newId} from "./store.js";
import {t} from "./words.js";

let heads = new Map(), chosen = "", found = null, renaming = "", on = {}, isNews = false; // isNews: the note was of an import
let opened;
const ready = new Promise((yes) => { opened = yes; }); // the store, once the list was read from it
let writing = null; // the newest change; the browser makes them one after the other
export const written = async () => { try { await writing; } catch { /* keep() tells of it */ } };
const others = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("nereid");

// opening: a promise of the store. events: {open(id), gone(), changed(id), renamed(id, title)}; gone: the shown one was deleted; changed: another tab
// wrote or deleted it.
export async function startList(opening, events) {
  on = events;
  const store = await opening;
  for (const h of await store.list()) if (!heads.has(h.id)) heads.set(h.id, h);
  opened(store);
  if (!store.kept) note(t("This browser keeps nothing: conversations end with this tab."));
  if (others) {
    others.onmessage = async (e) => {
      heads = new Map((await store.list()).map((h) => [h.id, h]));
      draw();
      on.changed(e.data);
    };
  }
  draw();
}

function note(text) {
  isNews = false;
  $("list-note").hidden = !text;
  $("list-note").textContent = text;
}

const sorted = () => [...heads.values()].sort((a, b) => b.changed - a.changed);
const shown = () => sorted().filter((h) => !found || found.has(h.id));
export const neighbour = (step) => { // the conversation above or below the chosen one
  const list = shown(), i = list.findIndex((h) => h.id === chosen);
  return (list[i < 0 ? 0 : i + step] || {}).id;
};

export async function keep(conv) {
  heads.set(conv.id, {id: conv.id, title: conv.title, named: conv.named, created: conv.created, changed: conv.changed});
  draw();
  try {
    writing = ready.then((s) => s.put(conv));
    await writing;
    if (others && (await ready).kept) others.postMessage(conv.id);
  } catch (e) {
    note(t("This conversation could not be kept: {why}", {why: e.message}));
  }
}

export const has = (id) => heads.has(id);

export function choose(id) {
  chosen = id;
  renaming = "";
  if (isNews) note("");
  draw();
}

function group(time) {
  const today = new Date().setHours(0, 0, 0, 0), days = (today - new Date(time).setHours(0, 0, 0, 0)) / 864e5;
  return days < 0.5 ? t("Today") : days < 1.5 ? t("Yesterday") : days < 7.5 ? t("This week") : days < 31 ? t("This month") : t("Older");
}

function draw() {
  const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : undefined;
  const list = shown();
  let last = "";
  $("list").replaceChildren(...list.flatMap((h) => {
    const g = group(h.changed), head = g === last ? [] : [el("li", {className: "when", textContent: g})];
    last = g;
    return [...head, row(h)];
  }));
  if (!list.length) $("list").append(el("li", {className: "help", textContent: found ? t("Nothing was found.") : t("No conversations yet.")}));
  if (focus) { const e = $("list").querySelector(`[data-focus="${CSS.escape(focus)}"]`); if (e) e.focus(); }
  $("export").disabled = $("clear").disabled = !heads.size;
}

function row(h) {
  const title = h.title || t("Untitled");
  if (renaming === h.id) {
    const field = el("input", {value: h.title, maxLength: LIMITS.title});
    field.setAttribute("aria-label", t("New name"));
    let over = false;
    const end = (save) => {
      if (over) return;
      over = true;
      renaming = "";
      const name = field.value.trim();
      if (save && name && name !== h.title) rename(h.id, name);
      else draw();
    };
    field.addEventListener("keydown", (e) => {
      if (e.isComposing) return;
      if (e.key === "Enter") { e.preventDefault(); end(true); }
      if (e.key === "Escape") { e.stopPropagation(); end(false); }
    });
    field.addEventListener("blur", () => end(true));
    queueMicrotask(() => { field.focus(); field.select(); });
    return el("li", {}, field);
  }
  const open = button(title, () => on.open(h.id), {className: "title", title});
  open.dataset.focus = h.id;
  if (h.id === chosen) open.setAttribute("aria-current", "true");
  const again = button("✎", () => { renaming = h.id; draw(); }, {className: "icon", label: t("Rename {name}", {name: title})});
  const gone = button("✕", () => remove(h.id, title), {className: "icon", label: t("Delete {name}", {name: title})});
  return el("li", {className: h.id === chosen ? "chosen" : ""}, open, again, gone);
}

async function rename(id, title) {
  await written();
  const conv = await (await ready).get(id);
  if (!conv) return;
  Object.assign(conv, {title, named: true});
  on.renamed(id, title);
  await keep(conv);
}

async function remove(id, title) {
  if (!confirm(t("Delete “{name}”? This cannot be undone.", {name: title}))) return;
  heads.delete(id);
  if (id === chosen) on.gone();
  await (await ready).remove(id);
  if (others) others.postMessage(id);
  draw();
}

// ---- search ----

let asked = 0;
async function search() {
  const wanted = $("search").value.trim().toLowerCase(), mine = ++asked;
  if (!wanted) {
    found = null;
    return draw();
  }
  const hits = new Set([...heads.values()].filter((h) => h.title.toLowerCase().includes(wanted)).map((h) => h.id));
  await (await ready).each((c) => { if (mine === asked && !hits.has(c.id) && matches(c, wanted)) hits.add(c.id); });
  if (mine !== asked) return; // the text has changed since
  found = hits;
  draw();
}
$("search").addEventListener("input", search);

// ---- files ----

$("export").onclick = async () => {
  const all = [];
  await (await ready).each((c) => { all.push(c); });
  all.sort((a, b) => a.created - b.created);
  download(`nereid-${new Date().toISOString().slice(0, 10)}.json`, exportText(all));
};

$("import").onclick = () => $("import-file").click();
$("import-file").addEventListener("change", async () => {
  const file = $("import-file").files[0];
  $("import-file").value = "";
  if (file) await importFile(file);
});

export async function importFile(file) {
  try {
    if (file.size > LIMITS.file) throw new Error(t("the file is larger than {n} MiB", {n: LIMITS.file >> 20}));
    const list = importText(await file.text());
    await ready;
    let added = 0;
    for (const conv of list) {
      const mine = heads.get(conv.id);
      if (mine && mine.changed === conv.changed) continue; // it is here already
      if (mine) conv.id = newId(); // another state of it: both are kept
      await keep(conv);
      added++;
    }
    const known = list.length - added;
    note([added === 1 ? t("1 conversation was imported.") : t("{n} conversations were imported.", {n: added}),
      ...(known === 1 ? [t("1 was here already.")] : known ? [t("{n} were here already.", {n: known})] : [])].join(" "));
    isNews = true;
  } catch (e) {
    note(t("Nothing was imported from {name}: {why}", {name: file.name, why: e.message}));
  }
}

$("clear").onclick = async () => {
  if (!confirm(t("Delete all {n} conversations? This cannot be undone.", {n: heads.size}))) return;
  heads.clear();
  found = null;
  $("search").value = "";
  on.gone();
  await (await ready).clear();
  if (others) others.postMessage("");
  draw();
};
