// SPDX-License-Identifier: Apache-2.0
// The text of PDF files, so that it can be attached to a question. The end of this file makes it a worker: the bytes come
// as a message, {text, pages, read} or {reason} go back.
//
// Objects are found by reading the file from its beginning rather than by its table: the newest of a number holds, and a
// file whose table is damaged is read as well. Letters come from a font's ToUnicode map, else from its encoding and the
// names of its glyphs. Lines and spaces follow from where the text is put. Source: ISO 32000-1, sections 7 and 9.
import {glyphText, standardText, winAnsiText} from "./glyphs.js";

export const LIMITS = {bytes: 32 << 20, pages: 2000, inflated: 256 << 20, text: 2 << 20, words: 20000000, forms: 8, depth: 64, codes: 300000};

const refuse = (reason) => { throw Object.assign(new Error(reason), {reason}); };
const latin1 = (bytes) => {
  let s = "";
  for (let i = 0; i < bytes.length; i += 8192) s += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return s;
};

// ---- objects ----

// Values: numbers, true, false and null as themselves; {name}, {text} (a byte in each character), {ref}, {op}: a word; Arrays;
// Maps; {dict, data}: a stream. END: nothing more.
const END = {op: ""};
const isSpace = (c) => c === 32 || (c >= 9 && c <= 13) || c === 0;
const isDelimiter = (c) => "()<>[]{}/%".includes(String.fromCharCode(c));
const isDigit = (c) => c >= 48 && c <= 57;
const isName = (v, name) => Boolean(v) && v.name === name;
const isOp = (v, op) => Boolean(v) && v.op === op;
const escapes = {n: "\n", r: "\r", t: "\t", b: "\b", f: "\f"};

class Reader {
  constructor(bytes, at = 0, refs = true) { Object.assign(this, {bytes, at, refs}); }

  skip() {
    const {bytes} = this;
    for (; this.at < bytes.length; this.at++) {
      if (bytes[this.at] === 37) while (this.at < bytes.length && bytes[this.at] !== 10 && bytes[this.at] !== 13) this.at++;
      else if (!isSpace(bytes[this.at])) return;
    }
  }

  word() {
    const from = this.at;
    while (this.at < this.bytes.length && !isSpace(this.bytes[this.at]) && !isDelimiter(this.bytes[this.at])) this.at++;
    return latin1(this.bytes.subarray(from, this.at));
  }

  value(depth = 0) {
    if (depth > LIMITS.depth) refuse("damaged");
    this.skip();
    const {bytes} = this, c = bytes[this.at];
    if (c === undefined) return END;
    if (c === 47) {
      this.at++;
      return {name: this.word().replace(/#([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)))};
    }
    if (c === 40) return this.literal();
    if (c === 60) return bytes[this.at + 1] === 60 ? this.dict(depth) : this.hex();
    if (c === 91) {
      const list = [];
      this.at++;
      for (let v = this.value(depth + 1); v !== END && !isOp(v, "]"); v = this.value(depth + 1)) list.push(v);
      return list;
    }
    if (isDelimiter(c)) {
      this.at++;
      return {op: String.fromCharCode(c)};
    }
    const word = this.word(), n = /^[+-]*(\d+\.?\d*|\.\d+)/.test(word) ? parseFloat(word.replace(/^[+-]*(?=[+-])/, "")) : NaN;
    if (!Number.isNaN(n)) return this.refs && /^\d+$/.test(word) && this.isRef() ? {ref: n} : n;
    return word === "true" ? true : word === "false" ? false : word === "null" ? null : {op: word};
  }

  isRef() { // "7 0 R": the first number is read
    const {bytes} = this;
    let i = this.at;
    const run = (is) => { const from = i; while (i < bytes.length && is(bytes[i])) i++; return i > from; };
    if (!run(isSpace) || !run(isDigit) || !run(isSpace) || bytes[i] !== 82) return false;
    if (i + 1 < bytes.length && !isSpace(bytes[i + 1]) && !isDelimiter(bytes[i + 1])) return false;
    this.at = i + 1;
    return true;
  }

  literal() {
    const {bytes} = this;
    let text = "", open = 1;
    for (this.at++; this.at < bytes.length; this.at++) {
      const s = String.fromCharCode(bytes[this.at]);
      if (s === "\\") {
        const next = String.fromCharCode(bytes[++this.at]), octal = /^[0-7]{1,3}/.exec(latin1(bytes.subarray(this.at, this.at + 3)));
        if (octal) { text += String.fromCharCode(parseInt(octal[0], 8) & 255); this.at += octal[0].length - 1; }
        else if (next === "\r" && bytes[this.at + 1] === 10) this.at++;
        else if (next !== "\r" && next !== "\n") text += escapes[next] || next;
        continue;
      }
      if (s === "(") open++;
      if (s === ")" && --open === 0) { this.at++; break; }
      text += s;
    }
    return {text};
  }

  hex() {
    let digits = "";
    for (this.at++; this.at < this.bytes.length && this.bytes[this.at] !== 62; this.at++) digits += String.fromCharCode(this.bytes[this.at]);
    this.at++;
    digits = digits.replace(/[^0-9a-f]/gi, "");
    return {text: (digits.length % 2 ? `${digits}0` : digits).replace(/../g, (h) => String.fromCharCode(parseInt(h, 16)))};
  }

  dict(depth) {
    const map = new Map();
    this.at += 2;
    for (;;) {
      const key = this.value(depth + 1);
      if (key === END || isOp(key, "endobj") || isOp(key, "stream")) return map;
      if (isOp(key, ">")) { this.at += this.bytes[this.at] === 62 ? 1 : 0; return map; }
      if (!key || key.name === undefined) continue;
      const v = this.value(depth + 1);
      if (isOp(v, ">")) { this.at += this.bytes[this.at] === 62 ? 1 : 0; return map; }
      map.set(key.name, v);
    }
  }
}

function find(bytes, text, from) {
  for (let i = from; (i = bytes.indexOf(text.charCodeAt(0), i)) >= 0; i++) {
    let k = 1;
    while (k < text.length && bytes[i + k] === text.charCodeAt(k)) k++;
    if (k === text.length) return i;
  }
  return -1;
}

// ---- the file ----

class Pdf {
  constructor(bytes) {
    Object.assign(this, {bytes, objects: new Map(), tails: [], left: LIMITS.inflated, words: LIMITS.words, fonts: new Map()});
  }

  set(number, value, at) {
    if (!this.objects.has(number) || this.objects.get(number).at <= at) this.objects.set(number, {value, at});
  }

  get(v) { // what a reference means
    for (let i = 0; v && v.ref !== undefined && i < 16; i++) v = (this.objects.get(v.ref) || {value: null}).value;
    return v && v.ref !== undefined ? null : v;
  }

  member(dict, name) { return dict instanceof Map ? this.get(dict.get(name)) : null; }

  async open() {
    this.scan();
    for (const {value, at} of [...this.objects.values()]) if (value && value.data && isName(this.member(value.dict, "Type"), "ObjStm")) await this.unpack(value, at);
    if (this.tails.some((d) => d.has("Encrypt"))) refuse("encrypted");
  }

  scan() {
    const {bytes} = this;
    for (let at = 0; at < bytes.length;) {
      const i = bytes.indexOf(106, at); // the j of "obj"; "trailer" has none
      const tail = find(bytes.subarray(0, i < 0 ? bytes.length : i), "trailer", at);
      if (tail >= 0) {
        const d = new Reader(bytes, tail + 7).value();
        if (d instanceof Map) this.tails.push(d);
      }
      if (i < 0) return;
      at = i + 1;
      const number = bytes[i - 2] === 111 && bytes[i - 1] === 98 ? this.numberBefore(i - 2) : -1;
      if (number >= 0) at = this.take(number, at);
    }
  }

  numberBefore(i) { // "12 0 obj": the 12
    const head = /(\d{1,10})\s+\d{1,5}\s+$/.exec(latin1(this.bytes.subarray(Math.max(0, i - 24), i)));
    return head ? Number(head[1]) : -1;
  }

  take(number, from) {
    const {bytes} = this, r = new Reader(bytes, from), value = r.value(), after = r.at;
    r.skip();
    if (!(value instanceof Map) || !isOp(r.value(), "stream")) {
      this.set(number, value, from);
      return after;
    }
    const start = r.at + (bytes[r.at] === 13 && bytes[r.at + 1] === 10 ? 2 : 1), n = this.member(value, "Length");
    let end = start + n;
    if (!Number.isInteger(n) || n < 0 || !isOp(new Reader(bytes, end).value(), "endstream")) {
      end = find(bytes, "endstream", start);
      if (end < 0) end = bytes.length;
      if (bytes[end - 1] === 10) end--;
      if (bytes[end - 1] === 13) end--;
    }
    this.set(number, {dict: value, data: bytes.subarray(start, Math.max(start, end))}, from);
    if (isName(value.get("Type"), "XRef")) this.tails.push(value);
    return Math.max(start, end);
  }

  async unpack(stream, at) { // objects within a stream
    const data = await this.decode(stream), head = new Reader(data, 0, false);
    const first = this.member(stream.dict, "First"), n = Math.min(this.member(stream.dict, "N") || 0, data.length);
    for (let i = 0; i < n; i++) {
      const number = head.value(), offset = head.value();
      if (!Number.isInteger(number) || !Number.isInteger(offset)) return;
      this.set(number, new Reader(data, first + offset).value(), at);
    }
  }

  async decode({dict, data}) {
    const listOf = (v) => (Array.isArray(v) ? v : v ? [v] : []).map((x) => this.get(x));
    const filters = listOf(this.member(dict, "Filter") || this.member(dict, "F")), parms = listOf(this.member(dict, "DecodeParms"));
    for (const [i, f] of filters.entries()) {
      const decoder = decoders[f && f.name];
      if (!decoder) return new Uint8Array(0); // a picture's, or none of this standard
      data = this.predicted(await decoder(this, data), parms[i]);
    }
    return data;
  }

  async inflate(data) {
    const parts = [], reader = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    let n = 0;
    try {
      for (let r = await reader.read(); !r.done; r = await reader.read()) {
        n += r.value.length;
        this.left -= r.value.length;
        if (this.left < 0) refuse("large");
        parts.push(r.value);
      }
    } catch (e) {
      reader.cancel().catch(() => {});
      if (e.reason) throw e; // else what came before the damage counts
    }
    const out = new Uint8Array(n);
    n = 0;
    for (const p of parts) { out.set(p, n); n += p.length; }
    return out;
  }

  predicted(data, parms) { // PNG's predictors, one for each row
    if (!(this.member(parms, "Predictor") >= 10)) return data;
    const of = (name, other) => Math.min(Math.max(this.member(parms, name) || other, 1), 1 << 16);
    const step = Math.ceil(of("Colors", 1) * of("BitsPerComponent", 8) / 8), row = Math.ceil(of("Columns", 1) * of("Colors", 1) * of("BitsPerComponent", 8) / 8);
    const out = new Uint8Array(Math.ceil(data.length / (row + 1)) * row);
    let n = 0;
    for (let at = 0; at < data.length; at += row + 1) {
      for (let i = 0; i < row && at + 1 + i < data.length; i++, n++) {
        const a = i < step ? 0 : out[n - step], b = n < row ? 0 : out[n - row], c = i < step || n < row ? 0 : out[n - row - step];
        const p = a + b - c, pa = Math.abs(p - a), pb = Math.abs(p - b), pc = Math.abs(p - c);
        out[n] = data[at + 1 + i] + [0, a, b, (a + b) >> 1, pa <= pb && pa <= pc ? a : pb <= pc ? b : c][data[at]] || 0;
      }
    }
    return out.subarray(0, n);
  }

  pages() {
    const list = [], seen = new Set();
    const root = this.tails.map((d) => this.member(d, "Root")).findLast((r) => r instanceof Map) ||
      [...this.objects.values()].map((o) => o.value).findLast((v) => v instanceof Map && isName(this.get(v.get("Type")), "Catalog"));
    const walk = (node, resources, depth) => {
      if (!(node instanceof Map) || seen.has(node) || depth > LIMITS.depth) return;
      seen.add(node);
      const own = this.member(node, "Resources") || resources, kids = this.member(node, "Kids");
      if (Array.isArray(kids)) for (const k of kids) walk(this.get(k), own, depth + 1);
      else list.push({node, resources: own});
    };
    walk(this.member(root, "Pages"), null, 0);
    return list;
  }

  async contents(page) {
    const v = this.member(page, "Contents"), parts = [];
    for (const s of Array.isArray(v) ? v : [v]) {
      const stream = this.get(s);
      if (stream && stream.data) parts.push(await this.decode(stream), new Uint8Array([10]));
    }
    const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
    let n = 0;
    for (const p of parts) { out.set(p, n); n += p.length; }
    return out;
  }
}

const decoders = {
  FlateDecode: (pdf, data) => pdf.inflate(data),
  LZWDecode: (pdf, data) => lzw(pdf, data),
  ASCIIHexDecode: (pdf, data) => bytesOf(new Reader(new Uint8Array([60, ...data])).hex().text),
  ASCII85Decode: (pdf, data) => ascii85(data),
};
for (const [short, long] of [["Fl", "Flate"], ["LZW", "LZW"], ["AHx", "ASCIIHex"], ["A85", "ASCII85"]]) decoders[short] = decoders[`${long}Decode`];

const bytesOf = (text) => Uint8Array.from(text, (c) => c.charCodeAt(0));

function ascii85(data) {
  const out = [];
  let group = [];
  const flush = () => {
    const n = group.length - 1;
    while (group.length < 5) group.push(84);
    const v = group.reduce((s, d) => s * 85 + d, 0);
    for (let i = 0; i < n; i++) out.push(Math.floor(v / 256 ** (3 - i)) % 256);
    group = [];
  };
  for (const c of data) {
    if (c === 126) break;
    if (c === 122 && !group.length) out.push(0, 0, 0, 0);
    else if (c >= 33 && c <= 117 && group.push(c - 33) === 5) flush();
  }
  if (group.length > 1) flush();
  return new Uint8Array(out);
}

function lzw(pdf, data) {
  const out = [];
  let table = [], width = 9, bits = 0, have = 0, last = null;
  for (const byte of data) {
    bits = (bits << 8 | byte) & 0xffffff;
    have += 8;
    if (have < width) continue;
    have -= width;
    const code = bits >> have & (1 << width) - 1;
    if (code === 257) break;
    if (code === 256) { table = []; width = 9; last = null; continue; }
    const entry = code < 256 ? [code] : table[code - 258] || (last && [...last, last[0]]);
    if (!entry) break;
    if (last && table.length < 3838) table.push([...last, entry[0]]);
    if ((pdf.left -= entry.length) < 0) refuse("large");
    for (const b of entry) out.push(b);
    last = entry;
    const next = table.length + 259; // the code of the next entry, one early
    width = next >= 2048 ? 12 : next >= 1024 ? 11 : next >= 512 ? 10 : 9;
  }
  return new Uint8Array(out);
}

// ---- fonts ----

const utf16 = (text) => {
  let s = "";
  for (let i = 0; i + 1 < text.length; i += 2) s += String.fromCharCode(text.charCodeAt(i) << 8 | text.charCodeAt(i + 1));
  return s;
};
const numberOf = (text) => [...text].reduce((n, c) => n * 256 + c.charCodeAt(0), 0);
const codeOf = (n, length) => Array.from({length}, (_, i) => String.fromCharCode(Math.floor(n / 256 ** (length - 1 - i)) % 256)).join("");

// {map: code -> text, spaces: [from, to] of codes}
export function readCMap(bytes) {
  const r = new Reader(bytes, 0, false), map = new Map(), spaces = [];
  let items = [];
  for (let v = r.value(); v !== END; v = r.value()) {
    if (!v || v.op === undefined) { items.push(v); continue; }
    if (v.op === "endcodespacerange") for (let i = 0; i + 1 < items.length; i += 2) if (items[i].text && items[i + 1].text) spaces.push([items[i].text, items[i + 1].text]);
    if (v.op === "endbfchar") for (let i = 0; i + 1 < items.length; i += 2) if (items[i].text && map.size < LIMITS.codes) map.set(items[i].text, utf16(items[i + 1].text || ""));
    if (v.op === "endbfrange") {
      for (let i = 0; i + 2 < items.length; i += 3) {
        const [from, to, target] = items.slice(i, i + 3);
        if (!from.text || !to.text) continue;
        const first = numberOf(from.text), last = numberOf(to.text);
        for (let n = first; n <= last && map.size < LIMITS.codes; n++) {
          const s = Array.isArray(target) ? utf16((target[n - first] || {}).text || "") : utf16(target.text || "");
          const end = Array.isArray(target) || !s ? s : s.slice(0, -1) + String.fromCharCode(s.charCodeAt(s.length - 1) + n - first);
          map.set(codeOf(n, from.text.length), end);
        }
      }
    }
    items = [];
  }
  return {map, spaces};
}

// Maps of the standard whose codes are known encodings.
const charsets = [[/UTF16/, "utf-16be"], [/UCS2/, "utf-16be"], [/^GBK|^GB/, "gbk"], [/^B5|^ETen|^HKscs/, "big5"], [/RKSJ/, "shift_jis"], [/^KSC/, "euc-kr"], [/^EUC/, "euc-jp"]];

async function readFont(pdf, dict) {
  const unicode = pdf.member(dict, "ToUnicode"), map = unicode && unicode.data ? readCMap(await pdf.decode(unicode)).map : new Map();
  return isName(pdf.member(dict, "Subtype"), "Type0") ? composite(pdf, dict, map) : simple(pdf, dict, map);
}

async function composite(pdf, dict, map) {
  const encoding = pdf.member(dict, "Encoding"), child = pdf.get((pdf.member(dict, "DescendantFonts") || [])[0]);
  const spaces = encoding && encoding.data ? readCMap(await pdf.decode(encoding)).spaces : [];
  const charset = encoding && encoding.name && (charsets.find(([re]) => re.test(encoding.name)) || [])[1];
  const decoder = charset && new TextDecoder(charset), mixed = charset && charset !== "utf-16be";
  const widths = new Map(), w = pdf.member(child, "W") || [], wide = pdf.member(child, "DW") ?? 1000;
  for (let i = 0; i < w.length;) {
    const from = pdf.get(w[i]), next = pdf.get(w[i + 1]);
    if (Array.isArray(next)) next.forEach((v, k) => widths.set(from + k, pdf.get(v)));
    else for (let c = from; c <= next && widths.size < LIMITS.codes; c++) widths.set(c, pdf.get(w[i + 2]));
    i += Array.isArray(next) ? 2 : 3;
  }
  const lengthAt = (s, i) => {
    const hit = spaces.find(([a, b]) => s.length - i >= a.length && [...a].every((_, k) => s[i + k] >= a[k] && s[i + k] <= b[k]));
    return hit ? hit[0].length : mixed && s.charCodeAt(i) < 0x81 ? 1 : 2;
  };
  return (s) => {
    const out = [];
    for (let i = 0; i < s.length;) {
      const code = s.slice(i, i + lengthAt(s, i)), text = map.get(code) ?? (decoder ? decoder.decode(bytesOf(code)) : "\ufffd");
      out.push({text, width: widths.get(numberOf(code)) ?? wide, space: code === " "});
      i += code.length;
    }
    return out;
  };
}

// The names that a font's own program gives its codes (Type 1, before its enciphered part).
async function builtIn(pdf, dict, table) {
  const file = pdf.member(pdf.member(dict, "FontDescriptor"), "FontFile");
  if (!file || !file.data) return;
  const head = latin1((await pdf.decode(file)).subarray(0, 1 << 16)).split("eexec")[0];
  for (const [, code, name] of head.matchAll(/dup\s+(\d{1,3})\s*\/(\S+)\s+put/g)) table[code] = glyphText(name);
}

async function simple(pdf, dict, map) {
  const encoding = pdf.member(dict, "Encoding"), base = encoding && (encoding.name || (pdf.member(encoding, "BaseEncoding") || {}).name);
  const table = base === "WinAnsiEncoding" ? winAnsiText()
    : base === "MacRomanEncoding" ? [...new TextDecoder("macintosh").decode(Uint8Array.from({length: 256}, (_, i) => i))] : standardText();
  if (!base) await builtIn(pdf, dict, table);
  let code = 0;
  for (const v of pdf.member(encoding, "Differences") || []) {
    if (typeof v === "number") code = v;
    else if (v && v.name) table[code++] = glyphText(v.name);
  }
  const widths = pdf.member(dict, "Widths") || [], first = pdf.member(dict, "FirstChar") || 0;
  const unit = isName(pdf.member(dict, "Subtype"), "Type3") ? Math.abs(pdf.get((pdf.member(dict, "FontMatrix") || [])[0]) || 0.001) * 1000 : 1;
  const missing = pdf.member(pdf.member(dict, "FontDescriptor"), "MissingWidth") || (/Courier|Mono/.test((pdf.member(dict, "BaseFont") || {}).name) ? 600 : 500);
  return (s) => [...s].map((c) => {
    const n = c.charCodeAt(0), width = pdf.get(widths[n - first]);
    return {text: map.get(c) ?? map.get(`\0${c}`) ?? table[n] ?? "\ufffd", width: typeof width === "number" ? width * unit : missing, space: c === " "};
  });
}

// ---- pages ----

const times = (m, n) => [m[0] * n[0] + m[1] * n[2], m[0] * n[1] + m[1] * n[3], m[2] * n[0] + m[3] * n[2], m[2] * n[1] + m[3] * n[3],
  m[4] * n[0] + m[5] * n[2] + n[4], m[4] * n[1] + m[5] * n[3] + n[5]];

// Text as it is put on a page: a line or a space where the pen was moved.
class Sheet {
  constructor() { Object.assign(this, {out: "", end: null, size: 0, letters: 0, unknown: 0}); }

  put(text, from, to, size, u) {
    if (this.end && this.out) {
      const high = Math.max(size, this.size); // of a small letter beside a large one too
      const dx = from[0] - this.end[0], dy = from[1] - this.end[1], along = dx * u[0] + dy * u[1], across = Math.abs(dy * u[0] - dx * u[1]);
      if (across > 0.5 * high || along < -high) this.out = `${this.out.trimEnd()}${across > 2 * high ? "\n\n" : "\n"}`;
      else if (along > 0.18 * size && !/\s$/.test(this.out) && !/^\s/.test(text)) this.out += " ";
    }
    this.out += text;
    Object.assign(this, {end: to, size});
  }
}

// forms: those that are being drawn.
async function draw(pdf, bytes, resources, sheet, ctm, forms) {
  const r = new Reader(bytes, 0, false), stack = [];
  let s = {ctm, font: null, size: 1, char: 0, word: 0, scale: 1, lead: 0, rise: 0}, tm = [1, 0, 0, 1, 0, 0], line = tm, args = [];
  const num = (i) => typeof args[i] === "number" ? args[i] : 0;
  const move = (x, y) => { tm = line = times([1, 0, 0, 1, x, y], line); };
  const show = (v) => {
    if (!s.font || !v || v.text === undefined) return;
    const at = () => { const m = times([1, 0, 0, 1, 0, s.rise], times(tm, s.ctm)); return [m[4], m[5]]; };
    const from = at(), m = times(tm, s.ctm), long = Math.hypot(m[0], m[1]) || 1;
    let text = "";
    for (const g of s.font(v.text)) {
      text += g.text;
      sheet.letters++;
      if (g.text === "\ufffd") sheet.unknown++;
      tm = times([1, 0, 0, 1, (g.width / 1000 * s.size + s.char + (g.space ? s.word : 0)) * s.scale, 0], tm);
    }
    sheet.put(text, from, at(), Math.abs(s.size) * (Math.hypot(m[2], m[3]) || long), [m[0] / long, m[1] / long]);
  };
  const ops = {
    q: () => { if (stack.length < 1000) stack.push({...s}); }, Q: () => { s = stack.pop() || s; }, cm: () => { s.ctm = times([0, 1, 2, 3, 4, 5].map(num), s.ctm); },
    BT: () => { tm = line = [1, 0, 0, 1, 0, 0]; }, Tm: () => { tm = line = [0, 1, 2, 3, 4, 5].map(num); },
    Td: () => move(num(0), num(1)), TD: () => { s.lead = -num(1); move(num(0), num(1)); }, "T*": () => move(0, -s.lead),
    Tc: () => { s.char = num(0); }, Tw: () => { s.word = num(0); }, Tz: () => { s.scale = num(0) / 100; }, TL: () => { s.lead = num(0); }, Ts: () => { s.rise = num(0); },
    Tj: () => show(args[0]), "'": () => { move(0, -s.lead); show(args[0]); },
    "\"": () => { s.word = num(0); s.char = num(1); move(0, -s.lead); show(args[2]); },
    TJ: () => { for (const v of Array.isArray(args[0]) ? args[0] : []) if (typeof v === "number") tm = times([1, 0, 0, 1, -v / 1000 * s.size * s.scale, 0], tm); else show(v); },
  };
  for (let v = r.value(); v !== END && sheet.out.length < LIMITS.text; v = r.value()) {
    if (--pdf.words < 0) refuse("large");
    if (!v || v.op === undefined) { if (args.length < 64) args.push(v); continue; }
    if (Object.hasOwn(ops, v.op)) ops[v.op]();
    else if (v.op === "Tf") {
      s.size = num(1);
      s.font = await fontOf(pdf, pdf.member(pdf.member(resources, "Font"), (args[0] || {}).name));
    } else if (v.op === "Do" && forms.length < LIMITS.forms) {
      const form = pdf.member(pdf.member(resources, "XObject"), (args[0] || {}).name);
      if (form && form.data && !forms.includes(form) && isName(pdf.member(form.dict, "Subtype"), "Form")) {
        const m = pdf.member(form.dict, "Matrix");
        await draw(pdf, await pdf.decode(form), pdf.member(form.dict, "Resources") || resources, sheet, Array.isArray(m) && m.length === 6 ? times(m.map((x) => Number(pdf.get(x)) || 0), s.ctm) : s.ctm, [...forms, form]);
      }
    } else if (v.op === "ID") { // a picture's bytes
      do {
        r.at = find(bytes, "EI", r.at + 1);
      } while (r.at >= 0 && !(isSpace(bytes[r.at - 1]) && (r.at + 2 >= bytes.length || isSpace(bytes[r.at + 2]))));
      if (r.at < 0) return;
      r.at += 2;
    }
    args = [];
  }
}

async function fontOf(pdf, dict) {
  if (!(dict instanceof Map)) return null;
  if (!pdf.fonts.has(dict)) pdf.fonts.set(dict, await readFont(pdf, dict));
  return pdf.fonts.get(dict);
}

// {text, pages: how many there are, read: of how many the text is}. Throws an error with a reason: "not pdf", "encrypted", "damaged"
// (no page), "large", "empty" (pictures alone), "fonts" (they do not say which letters they draw).
export async function pdfText(bytes) {
  if (bytes.length > LIMITS.bytes) refuse("large");
  if (find(bytes.subarray(0, 1024), "%PDF-", 0) < 0) refuse("not pdf");
  const pdf = new Pdf(bytes);
  await pdf.open();
  const pages = pdf.pages(), texts = [];
  let n = 0, letters = 0, unknown = 0;
  if (!pages.length) refuse("damaged");
  for (const {node, resources} of pages.slice(0, LIMITS.pages)) {
    const sheet = new Sheet();
    await draw(pdf, await pdf.contents(node), resources, sheet, [1, 0, 0, 1, 0, 0], []);
    letters += sheet.letters;
    unknown += sheet.unknown;
    texts.push(sheet.out.replace(/\r\n?/g, "\n").replace(/[ \t]+$/gm, "").trim());
    if ((n += texts.at(-1).length) > LIMITS.text) refuse("large");
  }
  const text = texts.filter((s) => s).join("\n\n");
  if (!text) refuse("empty");
  if (unknown * 2 > letters) refuse("fonts");
  return {text, pages: pages.length, read: texts.length};
}

if (globalThis.WorkerGlobalScope && globalThis instanceof WorkerGlobalScope) {
  onmessage = async ({data}) => {
    try {
      postMessage(await pdfText(new Uint8Array(data)));
    } catch (e) {
      postMessage({reason: e.reason || "damaged"});
    }
  };
}
