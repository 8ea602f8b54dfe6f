// SPDX-License-Identifier: Apache-2.0
// Conversations: what they are, how they branch, and where the browser keeps them.
//
// A conversation is a tree. {id, title, named, created, changed, head, next, nodes}: `nodes` maps numbers to
// {id, parent, role, content, ...}; a parent's number is smaller than its child's (0: none); `head` is the end of
// the branch that is shown. Editing or asking again adds a branch, so nothing is lost. Nodes of one `group` were
// asked side by side. Times are milliseconds since 1970.
//
// openStore() keeps them in IndexedDB, heads (for the list) apart from bodies; where a browser refuses that, they
// live until the tab is closed.

import {isPicture} from "./attach.js";

export const LIMITS = {file: 64 << 20, conversations: 20000, nodes: 20000, text: 8 << 20, title: 200};
export const FORMAT = "nereid-conversations";

export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

export function newConversation(now = Date.now()) {
  return {id: newId(), title: "", named: false, created: now, changed: now, head: 0, next: 1, nodes: {}};
}

// ---- the tree ----

export function addNode(conv, parent, fields, now = Date.now()) {
  const node = {id: conv.next++, parent, created: now, ...fields};
  conv.nodes[node.id] = node;
  conv.head = node.id;
  conv.changed = now;
  if (!conv.named && node.role === "user" && !conv.title) conv.title = titleOf(node.content || (node.files || []).map((f) => f.name).join(", "));
  return node;
}

export function titleOf(text) {
  const line = text.split("\n").map((l) => l.replace(/^[#>*\s-]+/, "").trim()).find((l) => l) || "";
  return line.length > 60 ? `${line.slice(0, 59).replace(/\s+\S*$/, "")}…` : line;
}

export function pathTo(conv, id = conv.head) {
  const out = [];
  for (let n = conv.nodes[id]; n; n = conv.nodes[n.parent]) out.push(n);
  return out.reverse();
}

// Numbers of the children of every node, oldest first.
export function childrenOf(conv) {
  const out = new Map();
  for (const n of Object.values(conv.nodes)) { // keys that are numbers come in their order
    if (!out.has(n.parent)) out.set(n.parent, []);
    out.get(n.parent).push(n.id);
  }
  return out;
}

// The end of the branch through a node: the newest child each time.
export function leafOf(conv, id) {
  const children = childrenOf(conv);
  while (children.has(id)) id = children.get(id).at(-1);
  return id;
}

// Takes a node and all that follows it away. The head goes to a sibling, else to the parent.
export function removeBranch(conv, id) {
  const node = conv.nodes[id], children = childrenOf(conv), shown = pathTo(conv).includes(node);
  for (const todo = [id]; todo.length;) {
    const n = todo.pop();
    todo.push(...(children.get(n) || []));
    delete conv.nodes[n];
  }
  const siblings = (children.get(node.parent) || []).filter((s) => s !== id);
  if (shown) conv.head = siblings.length ? leafOf(conv, siblings.at(-1)) : node.parent;
  conv.changed = Date.now();
}

// ---- files ----

const isText = (v, max = LIMITS.text) => typeof v === "string" && v.length <= max;
const isTime = (v) => Number.isFinite(v) && v >= 0 && v < 1e15;

// One conversation from outside, with only what is known here. Throws what is wrong.
function readConversation(raw, where) {
  const wrong = (what) => { throw new Error(`${where}: ${what}`); };
  if (!raw || typeof raw !== "object") wrong("not an object");
  const conv = newConversation(isTime(raw.created) ? raw.created : Date.now());
  if (typeof raw.id === "string" && /^[0-9a-f]{24}$/.test(raw.id)) conv.id = raw.id;
  if (isTime(raw.changed)) conv.changed = raw.changed;
  conv.title = isText(raw.title) ? raw.title.slice(0, LIMITS.title) : "";
  conv.named = raw.named === true;
  if (Array.isArray(raw.messages)) { // the form of OpenAI's API
    if (raw.messages.length > LIMITS.nodes) wrong(`more than ${LIMITS.nodes} messages`);
    let parent = 0;
    const changed = conv.changed;
    for (const [i, m] of raw.messages.entries()) {
      if (!m || !["user", "assistant", "system"].includes(m.role) || !isText(m.content)) wrong(`messages[${i}] has no role or text`);
      if (m.role === "system") continue;
      parent = addNode(conv, parent, {role: m.role, content: m.content, ...(m.role === "assistant" ? {model: isText(m.model, 300) ? m.model : ""} : {})}, conv.created).id;
    }
    conv.changed = changed;
    return conv;
  }
  if (!raw.nodes || typeof raw.nodes !== "object") wrong("no nodes and no messages");
  const list = Object.values(raw.nodes);
  if (list.length > LIMITS.nodes) wrong(`more than ${LIMITS.nodes} messages`);
  for (const n of list) {
    if (!n || !Number.isSafeInteger(n.id) || n.id < 1 || conv.nodes[n.id]) wrong("a message has no number of its own");
    if (!Number.isSafeInteger(n.parent) || n.parent < 0 || n.parent >= n.id) wrong(`message ${n.id}: its parent must have a smaller number`);
    if (!["user", "assistant", "tool"].includes(n.role)) wrong(`message ${n.id}: unknown role`);
    if (!isText(n.content)) wrong(`message ${n.id}: its text is missing or longer than ${LIMITS.text} characters`);
    const node = {id: n.id, parent: n.parent, role: n.role, content: n.content, created: isTime(n.created) ? n.created : conv.created};
    for (const key of ["reasoning", "model", "callId", "name"]) if (isText(n[key])) node[key] = n[key];
    for (const key of ["group", "tokens"]) if (Number.isSafeInteger(n[key]) && n[key] >= 0) node[key] = n[key];
    if (n.json === true) node.json = true;
    if (Array.isArray(n.note)) node.note = n.note.filter((x) => isText(x, 300)).slice(0, 20);
    if (Array.isArray(n.files)) {
      node.files = n.files.filter((f) => f && isText(f.name, 300) && (isText(f.text) || isPicture(f.image))).slice(0, 100)
        .map(({name, text, image}) => isPicture(image) ? {name, image} : {name, text});
    }
    if (Array.isArray(n.calls)) {
      node.calls = n.calls.filter((c) => c && isText(c.id, 300) && isText(c.name, 300) && isText(c.arguments)).slice(0, 100)
        .map((c) => ({id: c.id, name: c.name, arguments: c.arguments}));
    }
    conv.nodes[n.id] = node;
    conv.next = Math.max(conv.next, n.id + 1);
  }
  for (const n of Object.values(conv.nodes)) if (n.parent && !conv.nodes[n.parent]) wrong(`message ${n.id}: its parent ${n.parent} is not there`);
  conv.head = conv.nodes[raw.head] ? raw.head : list.length ? leafOf(conv, 0) : 0;
  return conv;
}

export function exportText(conversations) {
  return `${JSON.stringify({format: FORMAT, version: 1, exported: new Date().toISOString(), conversations}, null, 1)}\n`;
}

// The conversations of a file: our own form, or {messages: [...]} of OpenAI's, one or a list. Throws what is wrong.
export function importText(text) {
  if (text.length > LIMITS.file) throw new Error(`the file is larger than ${LIMITS.file >> 20} MiB`);
  let doc;
  try {
    doc = JSON.parse(text);
  } catch (e) {
    throw new Error(`not JSON: ${e.message}`);
  }
  if (doc && doc.format === FORMAT && doc.version !== 1) throw new Error(`version ${JSON.stringify(doc.version)} of this form is not known; expected 1`);
  const list = doc && Array.isArray(doc.conversations) ? doc.conversations :
    Array.isArray(doc) ? (doc.length && doc.every((m) => m && m.role) ? [{messages: doc}] : doc) : [doc];
  if (list.length > LIMITS.conversations) throw new Error(`more than ${LIMITS.conversations} conversations`);
  return list.map((c, i) => readConversation(c, `conversation ${i + 1}`));
}

export function matches(conv, wanted) {
  return Object.values(conv.nodes).some((n) => n.content.toLowerCase().includes(wanted) || (n.files || []).some((f) => f.name.toLowerCase().includes(wanted)));
}

// ---- where they are kept ----

const headOf = ({id, title, named, created, changed}) => ({id, title, named, created, changed});
const done = (request) => new Promise((yes, no) => {
  request.onsuccess = () => yes(request.result);
  request.onerror = () => no(request.error);
});
const committed = (tx) => new Promise((yes, no) => {
  tx.oncomplete = () => yes();
  tx.onabort = tx.onerror = () => no(tx.error || new Error("the browser gave the change up"));
});

function inMemory() {
  const all = new Map();
  return {
    kept: false,
    list: async () => [...all.values()].map(headOf),
    get: async (id) => structuredClone(all.get(id)),
    put: async (conv) => { all.set(conv.id, structuredClone(conv)); },
    remove: async (id) => { all.delete(id); },
    clear: async () => { all.clear(); },
    each: async (f) => { for (const c of all.values()) f(c); },
  };
}

// The same functions over IndexedDB. `each` gives every conversation to f.
export async function openStore(name) {
  let db;
  try {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("heads", {keyPath: "id"});
      request.result.createObjectStore("bodies", {keyPath: "id"});
    };
    db = await done(request);
  } catch {
    return inMemory();
  }
  const both = () => db.transaction(["heads", "bodies"], "readwrite");
  return {
    kept: true,
    list: () => done(db.transaction("heads").objectStore("heads").getAll()),
    get: (id) => done(db.transaction("bodies").objectStore("bodies").get(id)),
    put: (conv) => {
      const tx = both();
      tx.objectStore("heads").put(headOf(conv));
      tx.objectStore("bodies").put(conv);
      return committed(tx);
    },
    remove: (id) => {
      const tx = both();
      tx.objectStore("heads").delete(id);
      tx.objectStore("bodies").delete(id);
      return committed(tx);
    },
    clear: () => {
      const tx = both();
      tx.objectStore("heads").clear();
      tx.objectStore("bodies").clear();
      return committed(tx);
    },
    each: (f) => new Promise((yes, no) => {
      const request = db.transaction("bodies").objectStore("bodies").openCursor();
      request.onerror = () => no(request.error);
      request.onsuccess = () => {
        if (!request.result) return yes();
        f(request.result.value);
        request.result.continue();
      };
    }),
  };
}
