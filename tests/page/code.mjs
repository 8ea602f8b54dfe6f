// SPDX-License-Identifier: Apache-2.0
// Colours of code, formulas, words, events of a stream.
import {readFileSync, readdirSync} from "node:fs";
import {assert, load, PAGE, random, test} from "./check.mjs";

const {highlight} = await load("highlight.js");
const {mathml} = await load("math.js");
const {t, zh} = await load("words.js");
const {events} = await load("api.js");

const kinds = (text, lang) => highlight(text, lang).filter(([k]) => k).map(([k, s]) => `${k}:${s}`);

test("code has its colours", () => {
  assert.deepEqual(kinds('int f(x) { return "a\\"b"; } // c', "c"), ["k:int", "f:f", "k:return", 's:"a\\"b"', "c:// c"]);
  assert.deepEqual(kinds('def f(x):\n  """doc\n"""\n  return 1.5e3 # c', "Python"), ["k:def", "f:f", 's:"""doc\n"""', "k:return", "n:1.5e3", "c:# c"]);
  assert.deepEqual(kinds('{"a": "b", "c": [1, true]}', "json"), ['t:"a"', 's:"b"', 't:"c"', "n:1", "k:true"]);
  assert.deepEqual(kinds("SELECT a FROM b -- c", "sql"), ["k:SELECT", "k:FROM", "c:-- c"]);
  assert.deepEqual(kinds('echo "$x" $y # no', "sh"), ["k:echo", 's:"$x"', "t:$y", "c:# no"]);
  assert.deepEqual(kinds('<a href="x"><!-- c --></a>', "html"), ["t:<a", 's:"x"', "t:>", "c:<!-- c -->", "t:</a", "t:>"]);
  assert.deepEqual(kinds("+a\n-b\n c", "diff"), ["add:+a\n", "del:-b\n"]);
  assert.deepEqual(kinds("if x", "nothing known"), []);
});

test("colours change no character and take no time", () => {
  const next = random(3), parts = ['"', "'", "`", "/*", "*/", "//", "#", "--", "<!--", "-->", "<a", ">", "\n", " ", "a1", "0x1f", "1e", "\\", "if", "(", '"""', "$x", "é", "\u{1f600}", ":", "="];
  const languages = ["c", "py", "js", "json", "yaml", "sh", "sql", "html", "diff", "rust", "css", "make", "", "x"];
  for (let i = 0; i < 5000; i++) {
    const text = Array.from({length: next(30)}, () => parts[next(parts.length)]).join(""), lang = languages[next(languages.length)];
    assert.equal(highlight(text, lang).map(([, s]) => s).join(""), text, `${lang}: ${JSON.stringify(text)}`);
  }
  for (const part of parts) {
    const begin = performance.now();
    for (const lang of languages) highlight(part.repeat(60000 / part.length), lang);
    assert.ok(performance.now() - begin < 3000, part);
  }
});

const flat = (n) => typeof n === "string" ? n : `${n[0]}(${n.slice(2).map(flat).join(",")})`;
const tex = (s, expected) => test(s, () => assert.equal(mathml(s) && mathml(s).slice(2).map(flat).join(" "), expected));
tex("x^2", "msup(mi(x),mn(2))");
tex("a_i^{n+1}", "msubsup(mi(a),mi(i),mrow(mi(n),mo(+),mn(1)))");
tex("\\frac{a}{b} = \\sqrt[3]{x}", "mfrac(mi(a),mi(b)) mo(=) mroot(mi(x),mn(3))");
tex("\\frac12 x", "mfrac(mn(1),mn(2)) mi(x)");
tex("\\sum_{i=1}^n i", "munderover(mo(∑),mrow(mi(i),mo(=),mn(1)),mi(n)) mi(i)");
tex("\\left( \\frac{1}{2} \\right]", "mrow(mo((),mfrac(mn(1),mn(2)),mo(]))");
tex("\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}", "mrow(mo((),mtable(mtr(mtd(mi(a)),mtd(mi(b))),mtr(mtd(mi(c)),mtd(mi(d)))),mo()))");
tex("f'(x)", "msup(mi(f),mo(′)) mo(() mi(x) mo())");
tex("\\mathbb{R} \\text{ if } \\alpha", "mi(ℝ) mtext(\u00a0if\u00a0) mi(α)");
tex("\\mathbf{v}_1 \\vec{u}", "msub(mi(v),mn(1)) mover(mi(u),mo(→))");
for (const s of ["\\unknown{x}", "{", "}", "x^", "\\frac{a}", "\\left( x", "\\begin{what}x\\end{what}", "\\begin{matrix} a", "a & b", "x^2^3", "", "{".repeat(500), "\\sqrt".repeat(500), "x".repeat(5000)]) {
  test(`shown as it stands: ${s.slice(0, 30)}`, () => assert.equal(mathml(s), null));
}
test("any formula ends well", () => {
  const next = random(5), parts = ["x", "1", "^", "_", "{", "}", "\\frac", "\\left(", "\\right)", "&", "\\\\", "\\begin{matrix}", "\\end{matrix}", "'", "\\text{a}", "\\not", "\\hat", "\\sum", "[", "]", "\\sqrt", " ", "\\limits", "\\underbrace", "\\mathbf"];
  for (let i = 0; i < 20000; i++) mathml(Array.from({length: 1 + next(12)}, () => parts[next(parts.length)]).join(""));
});

// ---- words ----

const html = readFileSync(new URL("index.html", PAGE), "utf8");
const scripts = readdirSync(PAGE).filter((f) => f.endsWith(".js")).map((f) => readFileSync(new URL(f, PAGE), "utf8"));
const used = new Set(scripts.flatMap((s) => [...s.matchAll(/\bt\("((?:[^"\\]|\\.)*)"/g)].map((m) => m[1])));
const onPage = html.replace(/<(title|kbd)[^]*?<\/\1>|<option[^>]* lang=[^]*?<\/option>|<!--[^]*?-->/g, "");
const shown = new Set([...onPage.matchAll(/>([^<>]*[a-z][^<>]*)</gi), ...onPage.matchAll(/(?:aria-label|placeholder|title)="([^"]*[a-z][^"]*)"/gi)]
  .map((m) => m[1].trim()).filter((s) => s && s !== "Nereid" && !/^\S+\/\S+$/.test(s))); // names of models are no words

test("every word of the page has its translation, and none is left over", () => {
  assert.ok(used.size > 80 && shown.size > 60);
  const all = new Set([...used, ...shown]);
  assert.deepEqual([...all].filter((s) => !(s in zh)), []);
  assert.deepEqual(Object.keys(zh).filter((s) => !all.has(s)), []);
  for (const [en, s] of Object.entries(zh)) {
    assert.deepEqual((s.match(/\{\w+\}/g) || []).sort(), (en.match(/\{\w+\}/g) || []).sort(), en);
  }
});

test("values are filled in as they are", () => {
  assert.equal(t("{n} of {max}", {n: "{max}", max: "$&"}), "{max} of $&");
  assert.equal(t("not known {x}"), "not known {x}");
});

// ---- streams ----

const wire = 'data: {"a":"é中"}\n\n: remark\nevent: x\r\ndata:{"b":1}\r\n\r\ndata: [DONE]\n\n';
const bytes = new TextEncoder().encode(wire);
const failures = [];
for (let cut = 1; cut < bytes.length; cut++) { // every place, also within a character
  const stream = new ReadableStream({start(c) { c.enqueue(bytes.slice(0, cut)); c.enqueue(bytes.slice(cut)); c.close(); }});
  const got = [];
  for await (const e of events(stream)) got.push(e);
  if (got.join("|") !== '{"a":"é中"}|{"b":1}|[DONE]') failures.push([cut, got]);
}
test("events are read however they are cut", () => assert.deepEqual(failures, []));
