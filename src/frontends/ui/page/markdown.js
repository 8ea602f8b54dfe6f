// SPDX-License-Identifier: Apache-2.0
// Markdown as models write it: text to a tree (parse), tree to elements (build). Model text becomes
// text nodes only, never markup: HTML is shown as it stands, links go to http, https and mailto, pictures
// become links, so that nothing is fetched from elsewhere.
// Source: CommonMark 0.31, GitHub's tables, task lists and strikethrough. Looser where models are: a nested
// list may be indented by two, a line break is a line break.
//
// parse() gives blocks {t, line, ...}; `line` is where the block begins. Later text changes only the last
// block, so a stream is drawn anew from there (settled, talk.js). Work grows with the length of the text, not faster:
// nesting and open delimiters have limits.
import {el, button} from "./dom.js";
import {highlight} from "./highlight.js";
import {mathml} from "./math.js";
import {t} from "./words.js";

const MAX_DEPTH = 12; // quotes and lists within each other
const MAX_OPEN = 32; // emphasis and links within each other
const MAX_COLUMNS = 64;
const MAX_FORMULA = 100; // lines
const MAX_COLORED = 60000; // characters of a code block

// ---- inline ----

const word = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
const space = (c) => c === undefined || /\s/.test(c);
const entities = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–"};

export function safeUrl(s) {
  return /^(https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(s) ? s : null;
}

// Text that ends at a closer at or behind `from`; -1: there is none. What was not found once is not sought again.
function finder(text) {
  const missing = new Map();
  return (what, from) => {
    if (missing.has(what) && from >= missing.get(what)) return -1;
    const i = text.indexOf(what, from);
    if (i < 0) missing.set(what, from);
    return i;
  };
}

function addText(out, s) {
  if (!s) return;
  if (typeof out.at(-1) === "string") out[out.length - 1] += s;
  else out.push(s);
}

// Nodes of a line or paragraph: strings and {t: strong|em|del|code|a|math, ...}.
export function inline(text) {
  const find = finder(text);
  const stack = [{kind: "", out: []}]; // open delimiters, the outermost first
  const top = () => stack.at(-1);
  const put = (s) => addText(top().out, s);
  // Frames above and at `i` turn back into text.
  const flatten = (i) => {
    while (stack.length > i) {
      const f = stack.pop();
      put(f.source);
      for (const n of f.out) typeof n === "string" ? put(n) : top().out.push(n);
    }
  };
  const open = (kind, source) => {
    if (stack.length < MAX_OPEN) stack.push({kind, source, out: []});
    else put(source);
  };
  const close = (kind, node) => {
    const i = stack.findLastIndex((f) => f.kind === kind);
    if (i < 1 || (!stack[i].out.length && i === stack.length - 1)) return false;
    flatten(i + 1);
    const f = stack.pop();
    top().out.push({...node, c: f.out});
    return true;
  };
  const link = (href, label) => top().out.push({t: "a", href, c: [label]});

  let i = 0;
  while (i < text.length) {
    const c = text[i], next = text[i + 1];
    if (c === "\\" && (next === "(" || next === "[")) { // \( tex \)
      const end = find(next === "(" ? "\\)" : "\\]", i + 2);
      if (end > 0) {
        top().out.push({t: "math", tex: text.slice(i + 2, end), block: next === "["});
        i = end + 2;
        continue;
      }
    }
    if (c === "\\" && next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
      put(next);
      i += 2;
    } else if (c === "\\" && next === "\n") {
      i++;
    } else if (c === "`") {
      let n = 1;
      while (text[i + n] === "`") n++;
      const mark = "`".repeat(n);
      let end = find(mark, i + n);
      while (end > 0 && text[end + n] === "`") { // a longer run is not this mark
        let past = end + n;
        while (text[past] === "`") past++;
        end = find(mark, past);
      }
      if (end > 0) {
        let s = text.slice(i + n, end).replace(/\n/g, " ");
        if (s.length > 2 && s[0] === " " && s.at(-1) === " " && s.trim()) s = s.slice(1, -1);
        top().out.push({t: "code", text: s});
        i = end + n;
      } else {
        put(mark);
        i += n;
      }
    } else if (c === "$") {
      const two = next === "$", n = two ? 2 : 1;
      let end = find(two ? "$$" : "$", i + n);
      const tex = end > 0 ? text.slice(i + n, end) : "";
      // "$5 and $6" is money: a formula has no space inside its signs, and no digit behind them.
      const fits = two ? tex.trim() : tex && !space(tex[0]) && !space(tex.at(-1)) && !/\d/.test(text[end + 1] || "") &&
        !word(text[i - 1]) && !tex.includes("\n");
      if (fits) {
        top().out.push({t: "math", tex, block: two});
        i = end + n;
      } else {
        put(two ? "$$" : "$");
        i += n;
      }
    } else if (c === "*" || c === "_" || (c === "~" && next === "~")) {
      let n = 1;
      while (text[i + n] === c) n++;
      const before = text[i - 1], after = text[i + n], run = c.repeat(n);
      let opens = !space(after), closes = !space(before);
      if (c === "_") { opens = opens && !word(before); closes = closes && !word(after); }
      if (c === "*" && n === 1 && word(before) && word(after) && /[\w]/.test(before + after)) { // 2*3*4
        opens = false;
        closes = closes && stack.some((f) => f.kind === "*") && !/\d/.test(after);
      }
      i += n;
      if (c === "~" ? n !== 2 : n > 3) { put(run); continue; }
      let left = n;
      if (closes) { // *** closes twice, what was opened last first
        for (const size of n === 3 ? (top().kind === c + c ? [2, 1] : [1, 2]) : [n]) {
          if (close(c.repeat(size), {t: c === "~" ? "del" : size === 2 ? "strong" : "em"})) left -= size;
        }
      }
      if (opens && left === n) {
        if (n === 3) { open(c, c); open(c + c, c + c); } else open(run, run);
      } else {
        put(c.repeat(left));
      }
    } else if (c === "[" || (c === "!" && next === "[")) {
      open("[", c === "!" ? "![" : "[");
      i += c === "!" ? 2 : 1;
    } else if (c === "]") {
      const at = stack.findLastIndex((f) => f.kind === "[");
      const m = at > 0 && next === "(" ? /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/.exec(text.slice(i + 1, i + 2100)) : null;
      const href = m && safeUrl((m[1] ?? m[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1"));
      if (href) {
        flatten(at + 1);
        const f = stack.pop();
        const outside = stack.some((x) => x.kind === "["); // a link within a link is only text
        if (outside && f.source === "[") for (const x of stack) if (x.kind === "[") x.kind = "";
        top().out.push({t: "a", href, c: f.out.length ? f.out : [href]});
        i += 1 + m[0].length;
      } else {
        if (at > 0) flatten(at);
        put("]");
        i++;
      }
    } else if (c === "<") {
      const m = /^<(?:((?:https?:\/\/|mailto:)[^\s<>]+)|(br)\s*\/?)>/i.exec(text.slice(i, i + 2100));
      if (m && m[1] && safeUrl(m[1])) link(m[1], m[1].replace(/^mailto:/, ""));
      else put(m && m[2] ? "\n" : m ? m[0] : "<");
      i += m ? m[0].length : 1;
    } else if (c === "&") {
      const m = /^&(?:([a-z]{2,6})|#(\d{1,7}));/.exec(text.slice(i, i + 12));
      const n = m && m[2] ? Number(m[2]) : 0;
      put(m && m[1] && entities[m[1]] ? entities[m[1]] : n > 31 && n < 0x110000 && (n < 0xd800 || n > 0xdfff) ? String.fromCodePoint(n) : m ? m[0] : "&");
      i += m ? m[0].length : 1;
    } else if (c === "h" && !word(text[i - 1]) && /^https?:\/\//.test(text.slice(i, i + 8)) && !stack.some((f) => f.kind === "[")) {
      let url = /^https?:\/\/[^\s<>"'`*|\\^{}\u3000-\u303f\uff00-\uffef]*/.exec(text.slice(i, i + 2048))[0];
      for (;;) { // what ends a sentence is not of the address
        if (/[.,:;!?\]]$/.test(url) || (url.endsWith(")") && url.split(")").length > url.split("(").length)) url = url.slice(0, -1);
        else break;
      }
      if (safeUrl(url)) link(url, url);
      else put(url);
      i += url.length;
    } else {
      let end = i + 1;
      while (end < text.length && !/[\\`$*_~[\]!<&h]/.test(text[end])) end++;
      put(text.slice(i, end));
      i = end;
    }
  }
  flatten(1);
  return stack[0].out;
}

// ---- blocks ----

const FENCE = /^( *)(`{3,}|~{3,})\s*([^`]*)$/, ITEM = /^( *)([-*+]|(\d{1,9})[.)])(?:([ \t]+)(?=\S)|\s*$)/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/, QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const DELIMITERS = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const indentOf = (line) => line.length - line.trimStart().length;
const blank = (line) => line === undefined || !line.trim();

function cells(line) {
  const out = [];
  let s = line.trim(), cell = "", tick = "";
  if (s[0] === "|") s = s.slice(1);
  for (let i = 0; i < s.length; i++) {
    if (s[i] === "\\" && s[i + 1] === "|") { cell += "|"; i++; continue; }
    if (s[i] === "`") {
      const run = /^`+/.exec(s.slice(i))[0];
      if (!tick && s.indexOf(run, i + run.length) > 0) tick = run;
      else if (tick === run) tick = "";
      cell += run;
      i += run.length - 1;
    } else if (s[i] === "|" && !tick) {
      out.push(cell.trim());
      cell = "";
    } else {
      cell += s[i];
    }
  }
  if (cell.trim()) out.push(cell.trim());
  return out;
}

function isTable(lines, i) {
  if (!lines[i].includes("|") || lines[i + 1] === undefined || !DELIMITERS.test(lines[i + 1])) return false;
  const n = cells(lines[i]).length;
  return n <= MAX_COLUMNS && cells(lines[i + 1]).length === n && (n > 1 || lines[i + 1].includes("|"));
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line);

// `$$` or `\[` on a line of its own up to its end, without an empty line between; null: not here.
function mathAt(lines, i) {
  const m = /^\s*(\$\$|\\\[)/.exec(lines[i]);
  if (!m) return null;
  const end = m[1] === "$$" ? "$$" : "\\]";
  for (let k = i; k < lines.length && k < i + MAX_FORMULA && !blank(lines[k]); k++) {
    const at = lines[k].indexOf(end, k === i ? m[0].length : 0);
    if (at < 0) continue;
    if (lines[k].slice(at + 2).trim()) return null; // text goes on behind it
    const tex = (k === i ? lines[k].slice(m[0].length, at) : [lines[i].slice(m[0].length), ...lines.slice(i + 1, k), lines[k].slice(0, at)].join("\n")).trim();
    return tex ? {tex, next: k + 1} : null;
  }
  return null;
}

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i]), ordered = first[3] !== undefined, mark = first[2].at(-1), indent = first[1].length;
  const block = {t: "list", line: i, ordered, start: ordered ? Number(first[3]) : 1, loose: false, items: []};
  while (i < lines.length) {
    const m = ITEM.exec(lines[i]);
    if (!m || m[1].length > indent + 1 || (m[3] !== undefined) !== ordered || m[2].at(-1) !== mark || RULE.test(lines[i])) break;
    const content = m[4] ? m[0].length : m[1].length + m[2].length + 1;
    const body = [lines[i].slice(m[0].length)];
    let strip = content, known = false, gap = false;
    i++;
    for (; i < lines.length; i++) {
      if (blank(lines[i])) { body.push(""); gap = true; continue; }
      const n = indentOf(lines[i]);
      if (n >= Math.min(content, indent + 2)) {
        if (!known) { strip = Math.min(content, n); known = true; }
        body.push(lines[i].slice(Math.min(n, strip)));
      } else if (gap || ITEM.test(lines[i]) || startsBlock(lines[i])) {
        break;
      } else {
        body.push(lines[i].trimStart()); // a paragraph that goes on without its indent
      }
      gap = false;
    }
    let end = body.length;
    while (end > 1 && blank(body[end - 1])) end--;
    const trailing = end < body.length;
    const inner = body.slice(0, end);
    const task = /^\[([ xX])\]\s+(?=\S)/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    const c = blocks(inner, depth + 1);
    block.items.push({task: task ? task[1] !== " " : null, c});
    const more = i < lines.length && ITEM.exec(lines[i]);
    if (c.filter((b) => b.t === "p").length > 1 || (trailing && more && more[1].length <= indent + 1 && more[2].at(-1) === mark && (more[3] !== undefined) === ordered)) block.loose = true;
  }
  return [block, i];
}

function blocks(lines, depth) {
  const out = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i], start = i;
    let m;
    if (blank(line)) {
      i++;
    } else if ((m = FENCE.exec(line))) {
      const code = [], pad = m[1].length, mark = m[2];
      let closed = false;
      for (i++; i < lines.length; i++) {
        const s = lines[i].trim();
        if (s.length >= mark.length && s === mark[0].repeat(s.length)) { closed = true; i++; break; }
        code.push(lines[i].slice(Math.min(pad, indentOf(lines[i]))));
      }
      out.push({t: "code", line: start, lang: m[3].trim().split(/[\s,{]/)[0], text: code.join("\n"), closed});
    } else if ((m = mathAt(lines, i))) {
      out.push({t: "math", line: start, tex: m.tex, block: true});
      i = m.next;
    } else if ((m = HEADING.exec(line))) {
      out.push({t: "h", line: start, level: m[1].length, c: inline(m[2] || "")});
      i++;
    } else if (RULE.test(line)) {
      out.push({t: "hr", line: start});
      i++;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      const inner = [];
      for (; i < lines.length && !blank(lines[i]); i++) {
        if (QUOTE.test(lines[i])) inner.push(lines[i].replace(QUOTE, ""));
        else if (startsBlock(lines[i]) || ITEM.test(lines[i]) || blank(inner.at(-1))) break;
        else inner.push(lines[i]);
      }
      out.push({t: "quote", line: start, c: blocks(inner, depth + 1)});
    } else if (depth < MAX_DEPTH && ITEM.test(line)) {
      const [block, next] = list(lines, i, depth);
      out.push(block);
      i = next;
    } else if (isTable(lines, i)) {
      const head = cells(line);
      const align = cells(lines[i + 1]).map((c) => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "");
      const rows = [];
      for (i += 2; i < lines.length && !blank(lines[i]) && lines[i].includes("|") && !startsBlock(lines[i]); i++) {
        const row = cells(lines[i]);
        rows.push(head.map((_, k) => inline(row[k] || "")));
      }
      out.push({t: "table", line: start, align, head: head.map((h) => inline(h)), rows});
    } else if (indentOf(line) >= 4) {
      const code = [];
      for (; i < lines.length && (blank(lines[i]) || indentOf(lines[i]) >= 4); i++) code.push(lines[i].slice(4));
      while (blank(code.at(-1))) code.pop();
      out.push({t: "code", line: start, lang: "", text: code.join("\n"), closed: true});
    } else {
      const text = [line.trimStart()];
      let level = 0;
      for (i++; i < lines.length && !blank(lines[i]); i++) {
        if (/^ {0,3}=+\s*$/.test(lines[i])) { level = 1; i++; break; }
        if (/^ {0,3}-{2,}\s*$/.test(lines[i])) { level = 2; i++; break; }
        const item = ITEM.exec(lines[i]);
        // Lists may follow text at once; "1986." at the beginning of a line is not one.
        if (startsBlock(lines[i]) || (item && item[4] && depth < MAX_DEPTH && (item[3] === undefined || Number(item[3]) === 1)) || isTable(lines, i) || mathAt(lines, i)) break;
        text.push(lines[i].trimStart());
      }
      const c = inline(text.join("\n").replace(/[ \t]+$/gm, ""));
      out.push(level ? {t: "h", line: start, level, c} : {t: "p", line: start, c});
    }
  }
  return out;
}

const linesOf = (text) => text.replace(/\r/g, "").split("\n").map((l) => l.replace(/^[ \t]*\t[ \t]*/, (s) => {
  let n = 0;
  for (const c of s) n += c === "\t" ? 4 - n % 4 : 1;
  return " ".repeat(n);
}));

export const parse = (text) => blocks(linesOf(text), 0);

// The blocks of a text that more text does not change, and where the rest begins: all but the last one of its whole
// lines. (A line that is not whole may become anything.)
export function settled(text) {
  const tree = parse(text.slice(0, text.lastIndexOf("\n") + 1));
  if (tree.length < 2) return {blocks: [], end: 0};
  let end = 0;
  for (let n = tree.at(-1).line; n > 0; n--) end = text.indexOf("\n", end) + 1;
  return {blocks: tree.slice(0, -1), end};
}

// ---- elements ----

const INLINE = {strong: "strong", em: "em", del: "del"};

function buildInline(nodes) {
  return nodes.map((n) => {
    if (typeof n === "string") return n;
    if (n.t === "code") return el("code", {textContent: n.text});
    if (n.t === "math") return buildMath(n);
    if (n.t === "a") return el("a", {href: n.href, target: "_blank", rel: "noopener noreferrer"}, ...buildInline(n.c));
    return el(INLINE[n.t], {}, ...buildInline(n.c));
  });
}

const MATHML = "http://www.w3.org/1998/Math/MathML";

function buildMath(n) {
  const tree = mathml(n.tex, n.block);
  const make = ([tag, attributes, ...children]) => {
    const e = document.createElementNS(MATHML, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    e.append(...children.map((c) => typeof c === "string" ? c : make(c)));
    return e;
  };
  // What is not understood stays readable: the source.
  const e = tree ? make(tree) : el("code", {className: "tex", textContent: n.tex});
  if (!n.block) return e;
  const box = el("span", {className: "formula", tabIndex: 0}, e);
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", t("Formula"));
  return box;
}

export function codeBlock(text, lang, colored = true) {
  const code = el("code");
  if (colored && text.length <= MAX_COLORED) {
    for (const [kind, s] of highlight(text, lang)) code.append(kind ? el("span", {className: `hl-${kind}`, textContent: s}) : s);
  } else {
    code.textContent = text;
  }
  const pre = el("pre", {tabIndex: 0}, code); // it scrolls, so the keyboard reaches it
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", t("Code"));
  const copy = button(t("Copy"), async () => {
    copy.textContent = await copyText(text) ? t("Copied") : t("Not copied");
    setTimeout(() => { copy.textContent = t("Copy"); }, 2000);
  }, {className: "plain", label: t("Copy the code")});
  return el("div", {className: "code"}, el("div", {className: "bar"}, el("span", {textContent: lang}), copy), pre);
}

// Over plain http browsers give the clipboard only through a selection.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = el("textarea", {value: text, className: "hidden"});
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

export function build(tree) {
  return tree.map((b) => {
    if (b.t === "p") return el("p", {}, ...buildInline(b.c));
    if (b.t === "h") return el(`h${Math.min(6, b.level + 2)}`, {}, ...buildInline(b.c));
    if (b.t === "hr") return el("hr");
    if (b.t === "math") return buildMath(b);
    if (b.t === "quote") return el("blockquote", {}, ...build(b.c));
    if (b.t === "code") return codeBlock(b.text, b.lang, b.closed || b.text.length < 8000);
    if (b.t === "list") {
      const e = el(b.ordered ? "ol" : "ul");
      if (b.ordered) e.start = b.start;
      e.append(...b.items.map((item) => {
        const c = item.c.flatMap((x) => x.t === "p" && !b.loose ? buildInline(x.c) : build([x]));
        const li = el("li", {}, ...c);
        if (item.task !== null) {
          const box = el("input", {type: "checkbox", checked: item.task, disabled: true});
          box.setAttribute("aria-label", item.task ? t("done") : t("to do"));
          li.className = "task";
          li.prepend(box);
        }
        return li;
      }));
      return e;
    }
    const cell = (tag, c, k) => el(tag, {className: b.align[k] ? `to-${b.align[k]}` : ""}, ...buildInline(c));
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...b.head.map((c, k) => cell("th", c, k)))),
      el("tbody", {}, ...b.rows.map((r) => el("tr", {}, ...r.map((c, k) => cell("td", c, k))))));
    const box = el("div", {className: "table", tabIndex: 0}, table);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", t("Table"));
    return box;
  });
}
