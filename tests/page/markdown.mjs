// SPDX-License-Identifier: Apache-2.0
import {assert, load, random, test} from "./check.mjs";

const {inline, parse, safeUrl, settled} = await load("markdown.js");

// A tree in short: [tag, ...children].
const short = (nodes) => nodes.map((n) => {
  if (typeof n === "string") return n;
  if (n.t === "code") return n.lang === undefined ? ["code", n.text] : ["pre", n.lang, n.text];
  if (n.t === "math") return ["math", n.tex];
  if (n.t === "a") return ["a", n.href, ...short(n.c)];
  if (n.t === "list") return [n.ordered ? `ol${n.start}` : "ul", ...n.items.map((i) => [i.task === null ? "li" : i.task ? "x" : "o", ...short(i.c).map((c) => c[0] === "p" && !n.loose ? c[1] : c)])];
  if (n.t === "table") return ["table", n.head.map((h) => short(h)), ...n.rows.map((r) => r.map((c) => short(c)))];
  if (n.t === "h") return [`h${n.level}`, ...short(n.c)];
  if (n.t === "hr") return ["hr"];
  return [n.t, ...short(n.c)];
});
const line = (text, expected) => test(text, () => assert.deepEqual(short(inline(text)), expected));
const page = (text, ...expected) => test(text, () => assert.deepEqual(short(parse(text)), expected));

line("a **b** *c* ***d*** `e`", ["a ", ["strong", "b"], " ", ["em", "c"], " ", ["em", ["strong", "d"]], " ", ["code", "e"]]);
line("**a *b* c**", [["strong", "a ", ["em", "b"], " c"]]);
line("*a **b** c*", [["em", "a ", ["strong", "b"], " c"]]);
line("2*3*4 and 5 * 6 * 7", ["2*3*4 and 5 * 6 * 7"]);
line("snake_case_name and __init__", ["snake_case_name and ", ["strong", "init"]]);
line("_a_ and ~~b~~ and ~c~", [["em", "a"], " and ", ["del", "b"], " and ~c~"]);
line("**“重点”**是", [["strong", "“重点”"], "是"]);
line("**not closed and *neither", ["**not closed and *neither"]);
line("** a **", ["** a **"]);
line("\\*a\\* \\` \\a", ["*a* ` \\a"]);
line("`` a ` b `` and ` ` and `open", [["code", "a ` b"], " and ", ["code", " "], " and `open"]);
line("`**a**` **`b`**", [["code", "**a**"], " ", ["strong", ["code", "b"]]]);
line("[a *b*](https://x.org/p_(1)?q=1 \"t\") end", [["a", "https://x.org/p_(1)?q=1", "a ", ["em", "b"]], " end"]);
line("[a](javascript:alert(1)) [b](data:text/html,x) [c](//x.org) [d](http://x y)", ["[a](javascript:alert(1)) [b](data:text/html,x) [c](//x.org) [d](", ["a", "http://x", "http://x"], " y)"]);
line("![cat](https://x.org/c.png)", [["a", "https://x.org/c.png", "cat"]]);
line("[x] [a[b](https://x.org)", ["[x] [a", ["a", "https://x.org", "b"]]);
line("see https://x.org/a_b_c. (https://y.org/(z)) <https://q.org>", ["see ", ["a", "https://x.org/a_b_c", "https://x.org/a_b_c"], ". (",
  ["a", "https://y.org/(z)", "https://y.org/(z)"], ") ", ["a", "https://q.org", "https://q.org"]]);
line("<b>x</b> &lt;i&gt; &amp;amp; &#65; &nope; a<br>b", ["<b>x</b> <i> &amp; A &nope; a\nb"]);
line("$x^2$ costs $5 and $6, \\(a+b\\), $$y$$", [["math", "x^2"], " costs $5 and $6, ", ["math", "a+b"], ", ", ["math", "y"]]);
line("", []);

page("# A\n## B #\ntext\nmore\n\nnext", ["h1", "A"], ["h2", "B"], ["p", "text\nmore"], ["p", "next"]);
page("Title\n===\nOther\n---\n\n---\n***", ["h1", "Title"], ["h2", "Other"], ["hr"], ["hr"]);
page("- a\n- b\n  - c\n    - d\n- e", ["ul", ["li", "a"], ["li", "b", ["ul", ["li", "c", ["ul", ["li", "d"]]]]], ["li", "e"]]);
page("1. a\n  - b\n    - c\n2. d", ["ol1", ["li", "a", ["ul", ["li", "b", ["ul", ["li", "c"]]]]], ["li", "d"]]);
page("3) a\n4) b\n\ntext", ["ol3", ["li", "a"], ["li", "b"]], ["p", "text"]);
page("- a\n\n- b", ["ul", ["li", ["p", "a"]], ["li", ["p", "b"]]]);
page("- a\n\n  more\n- b", ["ul", ["li", ["p", "a"], ["p", "more"]], ["li", ["p", "b"]]]);
page("- a\n* b", ["ul", ["li", "a"]], ["ul", ["li", "b"]]);
page("- [ ] a\n- [x] b\n- [c]", ["ul", ["o", "a"], ["x", "b"], ["li", "[c]"]]);
page("- a\nlazy\n- b", ["ul", ["li", "a\nlazy"], ["li", "b"]]);
page("1. a\n   ```c\n   int x;\n     y\n   ```\n2. b", ["ol1", ["li", "a", ["pre", "c", "int x;\n  y"]], ["li", "b"]]);
page("-\n- b", ["ul", ["li"], ["li", "b"]]);
page("Text:\n- a\n1986. b", ["p", "Text:"], ["ul", ["li", "a"]], ["ol1986", ["li", "b"]]);
page("in\n1986. it was", ["p", "in\n1986. it was"]);
page("> a\n> > b\n> - c\nlazy\n\nd", ["quote", ["p", "a"], ["quote", ["p", "b"]], ["ul", ["li", "c\nlazy"]]], ["p", "d"]);
page("```py title\na\n\n```x\n```\nb", ["pre", "py", "a\n\n```x"], ["p", "b"]);
page("````\n```\na\n```\n````", ["pre", "", "```\na\n```"]);
page("~~~\nopen", ["pre", "", "open"]);
page("a `b ```c``` d` e", ["p", "a ", ["code", "b ```c``` d"], " e"]);
page("    code\n\n    more\ntext", ["pre", "", "code\n\nmore"], ["p", "text"]);
page("| a | b |\n|---|:-:|\n| `x|y` | **z** |\n| only |\n\nend", ["table", [["a"], ["b"]], [[["code", "x|y"]], [["strong", "z"]]], [["only"], []]], ["p", "end"]);
page("a | b\n--- | ---\n1 | 2\n# h", ["table", [["a"], ["b"]], [["1"], ["2"]]], ["h1", "h"]);
page("a | b\nno table", ["p", "a | b\nno table"]);
page("a\n$$\nx\n= 1\n$$\nb", ["p", "a"], ["math", "x\n= 1"], ["p", "b"]);
page("\\[ x \\]\n$$ open\n\nb", ["math", "x"], ["p", "$$ open"], ["p", "b"]);
page("\tcode\r\n- a\r\n\t- b", ["pre", "", "code"], ["ul", ["li", "a", ["ul", ["li", "b"]]]]);
page("<script>alert(1)</script>", ["p", "<script>alert(1)</script>"]);

test("what is no web address is no link", () => {
  for (const s of ["javascript:alert(1)", "JAVASCRIPT:x", " https://x", "https://a\nb", "file:///etc", "vbscript:x", "data:,x", "//x", "https:x", ""]) assert.equal(safeUrl(s), null, s);
  for (const s of ["https://x.org", "HTTP://x", "mailto:a@b.c"]) assert.equal(safeUrl(s), s);
});

// A stream that is drawn from its last block gives what the whole text gives, however it is cut.
function pieces(text, cuts) {
  const done = [];
  let from = 0;
  for (const cut of cuts) {
    const {blocks, end} = settled(text.slice(from, cut));
    done.push(...blocks);
    from += end;
  }
  return [...done, ...parse(text.slice(from))];
}
const bare = (x) => JSON.parse(JSON.stringify(x, (k, v) => k === "line" ? undefined : v));

const parts = ["a", "b c", "*", "**", "_", "`", "```", "```c", "~~~", "\n", "\n", "\n\n", "- ", "  - ", "1. ", "2. ", "> ", "# ", "---", "===", "| a | b |", "|---|---|",
  "    ", "\t", "[", "](", "https://x.org", ")", "$$", "$", "\\[", "\\]", "\\", "<br>", "&lt;", "!", "- [x] ", "~~", "中文", "\u{1f600}"];
const next = random(7);
test("every cut of a stream", () => {
  for (let i = 0; i < 4000; i++) {
    const text = Array.from({length: 1 + next(24)}, () => parts[next(parts.length)]).join("");
    const cuts = Array.from({length: text.length - 1}, (_, k) => k + 1);
    assert.deepEqual(bare(pieces(text, cuts)), bare(parse(text)), JSON.stringify(text));
  }
});

test("no text is lost or made", () => {
  const letters = (n) => typeof n === "string" ? n : Array.isArray(n) ? n.map(letters).join("") :
    [n.text, n.tex, n.c, n.head, n.rows, n.items].map((x) => x === undefined ? "" : letters(x)).join("");
  for (let i = 0; i < 4000; i++) {
    const text = Array.from({length: 1 + next(24)}, () => ["q", "w ", "*", "_", "`", "[", "]", "(", ")", "\n", "- ", "> ", "**", "$"][next(14)]).join("");
    if (text.includes("```")) continue; // what stands behind is the name of a language
    assert.equal(letters(parse(text)).replace(/[^qw]/g, ""), text.replace(/[^qw]/g, ""), JSON.stringify(text));
  }
});

test("work grows with the length", () => {
  const heavy = ["*a ", "**", "_a", "[", "[a](", "![", "`", "`` ` ", "$", "$$", "\\(", "\\[\n", "> ", "- ", "  ", "| ", "&", "<", "http://", "~~", "***a* ", "1. a\n", "a|b\n", "|-", "> - ", "$$ a\n", "((", "](("];
  for (const s of heavy) {
    const begin = performance.now();
    parse(s.repeat(Math.ceil(100000 / s.length)));
    const ms = performance.now() - begin;
    assert.ok(ms < 3000, `100 kB of ${JSON.stringify(s)} took ${ms.toFixed(0)} ms`);
  }
});
