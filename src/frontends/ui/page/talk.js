// SPDX-License-Identifier: Apache-2.0
// The messages of the shown branch as elements. Views are kept by the node's number, so that a new message does
// not draw the others again; an answer that streams is drawn anew from its last block only.
import {$, button, el} from "./dom.js";
import {build, codeBlock, copyText, parse, settled} from "./markdown.js";
import {childrenOf, pathTo} from "./store.js";
import {t} from "./words.js";

const views = new Map(); // node number -> view, of the conversation that is shown
let shownId = null, actions = {};

// What the buttons do: {edit(node, text), again(node), more(node), remove(node), select(id), results(node, texts)}.
export function startTalk(a) { actions = a; }

export const isShown = (conv) => conv.id === shownId;

// Draws the branch of conv (null: an empty page). runs: numbers of the nodes that are being answered.
export function layout(conv, runs) {
  const log = $("log"), id = conv ? conv.id : null;
  if (id !== shownId) views.clear();
  shownId = id;
  const path = conv ? pathTo(conv) : [], children = conv ? childrenOf(conv) : new Map(), boxes = [];
  const used = new Set();
  path.forEach((node, i) => {
    const siblings = children.get(node.parent), last = i === path.length - 1;
    const beside = node.group ? siblings.filter((s) => conv.nodes[s].group === node.group) : [node.id];
    const roots = beside.map((s) => {
      const n = conv.nodes[s], busy = runs.has(s);
      if (!views.has(s)) {
        views.set(s, newView(n));
        paint(n, busy);
      }
      used.add(s);
      const view = views.get(s);
      view.root.classList.toggle("busy", busy);
      if (busy) view.root.setAttribute("aria-busy", "true"); // screen readers wait for the end
      else view.root.removeAttribute("aria-busy");
      tools(view, n, {busy, locked: runs.size > 0, last, siblings, beside, active: n === node});
      return view.root;
    });
    boxes.push(roots.length > 1 ? el("div", {className: "beside"}, ...roots) : roots[0]);
  });
  for (const s of views.keys()) if (!used.has(s)) views.delete(s);
  $("empty").hidden = path.length > 0;
  log.replaceChildren($("empty"), ...boxes);
}

export const toEnd = () => { $("log").scrollTop = $("log").scrollHeight; };

const nameOf = (n) => n.role === "user" ? t("You") : n.role === "tool" ? t("Result of {name}", {name: n.name || t("a tool")}) : n.model || t("Answer");

function newView(n) {
  const text = el("div", {className: "text"}), meta = el("p", {className: "meta", hidden: true});
  const bar = el("div", {className: "bar tools"}), who = el("p", {className: "who"}, el("span", {textContent: nameOf(n)}));
  const root = el("article", {className: `msg ${n.role}`}, who, text, meta, bar);
  root.setAttribute("aria-label", n.role === "assistant" ? t("Answer of {name}", {name: nameOf(n)}) : nameOf(n));
  return {root, who, text, meta, bar, settled: 0, tail: [], drawn: null};
}

// ---- text ----

function drawMarkdown(view, content, busy) {
  if (view.drawn !== null && !content.startsWith(view.drawn)) { // it was edited: begin anew
    view.text.replaceChildren();
    Object.assign(view, {settled: 0, tail: []});
  }
  view.drawn = content;
  for (const node of view.tail) node.remove();
  if (busy) {
    const {blocks, end} = settled(content.slice(view.settled));
    view.text.append(...build(blocks));
    view.settled += end;
  }
  view.tail = build(parse(content.slice(view.settled)));
  view.text.append(...view.tail);
}

function pretty(content) { // an answer in JSON, as it reads best
  try {
    return JSON.stringify(JSON.parse(content), null, 2);
  } catch {
    return content;
  }
}

// Draws what changed in a node. busy: more of it comes.
export function paint(n, busy) {
  const view = views.get(n.id);
  if (!view) return;
  const log = $("log"), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  if (n.role === "user") {
    view.text.textContent = n.content;
    if (n.files && !view.files) {
      view.files = el("div", {className: "files"}, ...n.files.map((f) => f.image ? el("img", {src: f.image, alt: f.name, title: f.name}) : el("details", {}, el("summary", {textContent: `${f.name} (${t("{n} characters", {n: f.text.length})})`}), codeBlock(f.text, f.name.split(".").at(-1)))));
      view.root.insertBefore(view.files, view.text);
    }
    view.text.hidden = !n.content;
  } else if (n.role === "tool") {
    view.text.replaceChildren(codeBlock(pretty(n.content), "json"));
  } else if (n.json) {
    view.text.replaceChildren(...(n.content ? [codeBlock(busy ? n.content : pretty(n.content), "json")] : []));
  } else {
    drawMarkdown(view, n.content, busy);
  }
  if (n.reasoning) {
    if (!view.thought) {
      view.thought = el("div");
      view.root.insertBefore(el("details", {className: "reasoning"}, el("summary", {textContent: t("Reasoning")}), view.thought), view.text);
    }
    view.thought.textContent = n.reasoning;
  }
  if (n.calls && n.calls.length) {
    if (!view.calls) {
      view.calls = el("div", {className: "calls"});
      view.root.insertBefore(view.calls, view.meta);
    }
    view.calls.replaceChildren(...n.calls.map((c) => {
      const box = el("div", {className: "call"}, el("p", {className: "who", textContent: t("Call of {name}", {name: c.name})}), codeBlock(pretty(c.arguments), "json"));
      return box;
    }));
  }
  view.meta.hidden = !n.note || !n.note.length;
  view.meta.replaceChildren(...(n.note || []).map((s) => el("span", {textContent: s})));
  if (atEnd) toEnd();
}

// An answer is over: it is drawn once as a whole.
export function settle(n) {
  const view = views.get(n.id);
  if (!view) return;
  view.text.replaceChildren();
  Object.assign(view, {settled: 0, tail: [], drawn: null});
  paint(n, false);
}

// ---- buttons ----

const plain = (text, f, label) => button(text, f, {className: "plain", ...(label ? {label} : {})});

function tools(view, n, {busy, locked, last, siblings, beside, active}) {
  const i = siblings.indexOf(n.id);
  view.root.classList.toggle("aside", !active);
  if (view.nav) view.nav.remove();
  view.nav = null;
  if (siblings.length > 1 && beside.length === 1) {
    const go = (step, sign, label) => {
      const b = button(sign, () => actions.select(siblings[i + step], n), {className: "icon", label});
      b.disabled = siblings[i + step] === undefined;
      return b;
    };
    view.nav = el("span", {className: "branches"}, go(-1, "‹", t("The version before")), `${i + 1}/${siblings.length}`, go(1, "›", t("The next version")));
    view.who.append(view.nav);
  }
  const list = [];
  if (!busy) {
    const copy = plain(t("Copy"), async () => {
      copy.textContent = await copyText(n.content) ? t("Copied") : t("Not copied");
      setTimeout(() => { copy.textContent = t("Copy"); }, 2000);
    });
    if (n.content) list.push(copy);
    if (!active) list.push(plain(t("Go on with this answer"), () => actions.select(n.id, n)));
  }
  if (!locked) { // while an answer comes, the tree does not change
    if (n.role === "assistant") {
      list.push(plain(t("Answer again"), () => actions.again(n)));
      if (last && active && n.content && !(n.calls && n.calls.length)) list.push(plain(t("Continue"), () => actions.more(n)));
      if (n.content) list.push(plain(t("Edit"), () => edit(view, n)));
    } else if (n.role === "user") {
      list.push(plain(t("Edit"), () => edit(view, n)));
      if (last) list.push(plain(t("Answer"), () => actions.again(n)));
    }
    list.push(plain(t("Delete"), () => actions.remove(n), t("Delete this message and what follows it")));
  }
  view.bar.replaceChildren(...list);
  if (view.form) view.form.remove();
  view.form = null;
  if (n.calls && n.calls.length && last && !locked && active) {
    view.form = resultForm(n);
    view.root.append(view.form);
  }
}

function resultForm(n) {
  const boxes = n.calls.map((c, i) => {
    const id = `result-${n.id}-${i}`;
    return [el("label", {htmlFor: id, textContent: t("Result of {name}", {name: c.name})}), el("textarea", {id, rows: 2, className: "mono", spellcheck: false})];
  });
  const form = el("form", {className: "results", autocomplete: "off"}, ...boxes.flat(), el("button", {type: "submit", textContent: n.calls.length > 1 ? t("Send the results") : t("Send the result")}));
  form.addEventListener("submit", (e) => { e.preventDefault(); actions.results(n, boxes.map(([, box]) => box.value)); });
  return form;
}

// Replaces the text by a box until it is sent or given up.
export function editNode(id, conv) { if (views.has(id)) edit(views.get(id), conv.nodes[id]); }

function edit(view, n) {
  if (view.editor) return view.editor.querySelector("textarea").focus();
  const box = el("textarea", {value: n.content, rows: Math.min(16, n.content.split("\n").length + 1)});
  box.setAttribute("aria-label", t("Edit the message"));
  const end = () => { view.editor.remove(); view.editor = null; view.text.hidden = !n.content; view.bar.hidden = false; };
  const save = () => { const s = box.value.trim(); end(); if (s && s !== n.content) actions.edit(n, s); };
  view.editor = el("form", {className: "editor", autocomplete: "off"}, box, el("div", {className: "row"},
    el("button", {type: "submit", className: "primary", textContent: n.role === "user" ? t("Send") : t("Save")}), button(t("Cancel"), end)));
  view.editor.addEventListener("submit", (e) => { e.preventDefault(); save(); });
  box.addEventListener("keydown", (e) => {
    if (e.isComposing) return;
    if (e.key === "Escape") { e.stopPropagation(); end(); $("prompt").focus(); }
    if (e.key === "Enter" && !e.shiftKey && n.role === "user") { e.preventDefault(); save(); }
  });
  view.text.hidden = view.bar.hidden = true;
  view.root.insertBefore(view.editor, view.meta);
  box.focus();
}
