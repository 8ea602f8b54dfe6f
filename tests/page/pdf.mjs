// SPDX-License-Identifier: Apache-2.0
// Text of PDF files, and what becomes of files that are attached.
import {deflateSync} from "node:zlib";
import {assert, load, random, test} from "./check.mjs";

const {LIMITS, pdfText, readCMap} = await load("pdf.js");
const {glyphText} = await load("glyphs.js");
const {contentOf, isPicture, whole} = await load("attach.js");

const latin1 = (s) => Uint8Array.from(s, (c) => c.charCodeAt(0));
const binary = (bytes) => Buffer.from(bytes).toString("latin1");
const stream = (text, dict = "") => `<<${dict}/Length ${text.length}>>\nstream\n${text}\nendstream`;
const flate = (text, dict = "") => stream(binary(deflateSync(Buffer.from(text, "latin1"))), `/Filter/FlateDecode${dict}`);
const HELVETICA = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>";

// A file of these objects (number -> text), without a table: the reader does not need one.
const file = (objects, tail = "trailer <</Root 1 0 R>>") =>
  latin1(`%PDF-1.7\n${Object.entries(objects).map(([n, s]) => `${n} 0 obj\n${s}\nendobj\n`).join("")}${tail}\n%%EOF`);
// One page for each content; `font` is F.
const pages = (contents, font = HELVETICA, more = {}) => file({
  1: "<</Type/Catalog/Pages 2 0 R>>", 2: `<</Type/Pages/Resources<</Font<</F 3 0 R>>>>/Kids[${contents.map((_, i) => `${10 + 2 * i} 0 R`).join(" ")}]/Count ${contents.length}>>`, 3: font,
  ...Object.fromEntries(contents.flatMap((c, i) => [[10 + 2 * i, `<</Type/Page/Parent 2 0 R/Contents ${11 + 2 * i} 0 R>>`], [11 + 2 * i, c]])), ...more});

async function read(bytes) {
  try {
    return (await pdfText(bytes)).text;
  } catch (e) {
    if (!e.reason) throw e;
    return {reason: e.reason};
  }
}
const gives = async (name, bytes, expected) => { const got = await read(bytes); test(name, () => assert.deepEqual(got, expected)); };
const shows = (name, content, expected, font, more) => gives(name, pages([stream(content)], font, more), expected);

await shows("lines, words and paragraphs are where the pen goes",
  "BT /F 10 Tf 50 700 Td (One) Tj 30 0 Td (two) Tj -30 -12 Td (three) Tj 0 -40 Td (four) Tj ET", "One two\nthree\n\nfour");
await shows("kerning is no space, a gap is", "BT /F 10 Tf [(W) 80 (orld) -400 (peace)] TJ ET", "World peace");
await shows("a line has its operators", "BT /F 10 Tf 12 TL (a) Tj T* (b) Tj (c) ' 1 0 (d) \" ET", "a\nb\nc\nd");
await shows("strings have escapes", "BT /F 10 Tf (\\(\\101\\)\\\\ (in) \\\r\nx) Tj <42 4 3> Tj ET", "(A)\\ (in) xBC");
await shows("accents of WinAnsi", "BT /F 10 Tf (caf\xe9 \x80 \x96) Tj ET", "café € –");
await shows("turned text is read along its line", "BT /F 10 Tf 0 1 -1 0 100 100 Tm (up) Tj 30 0 Td (wards) Tj ET", "up wards");
await shows("a matrix on the page scales gaps", "q .1 0 0 .1 0 0 cm BT /F 100 Tf (a) Tj 300 0 Td (b) Tj 0 -120 Td (c) Tj ET Q", "a b\nc");
await shows("superscripts stay in their line", "BT /F 10 Tf (E=mc) Tj 4 Ts /F 7 Tf (2) Tj ET", "E=mc2");
await shows("a picture within the text is skipped", "BT /F 10 Tf (a) Tj ET BI /W 1 /H 1 ID \x00(EI) Tj\xff EI BT /F 10 Tf 0 -20 Td (b) Tj ET", "a\nb");
await shows("a form has its own text", "BT /F 10 Tf (a) Tj ET /X Do", "a\nin it", HELVETICA,
  {2: "<</Type/Pages/Resources<</Font<</F 3 0 R>>/XObject<</X 5 0 R>>>>/Kids[10 0 R]>>", 5: stream("BT /F 10 Tf 0 -20 Td (in it) Tj ET /X Do", "/Type/XObject/Subtype/Form")});

// ---- filters ----

const HELLO = "BT /F 10 Tf (Hello) Tj ET";
const ascii85 = (s) => { // with padding, by hand
  let out = "";
  for (let i = 0; i < s.length; i += 4) {
    const part = s.slice(i, i + 4), n = part.length;
    let v = [...part.padEnd(4, "\0")].reduce((t, c) => t * 256 + c.charCodeAt(0), 0), g = "";
    for (let k = 0; k < 5; k++) { g = String.fromCharCode(33 + v % 85) + g; v = Math.floor(v / 85); }
    out += g.slice(0, n + 1);
  }
  return `${out}~>`;
};
await gives("Flate", pages([flate(HELLO)]), "Hello");
await gives("hexadecimal digits around Flate", pages([stream(`${Buffer.from(deflateSync(Buffer.from(HELLO))).toString("hex")}>`, "/Filter[/ASCIIHexDecode/FlateDecode]")]), "Hello");
await gives("base 85", pages([stream(ascii85(HELLO), "/Filter/ASCII85Decode")]), "Hello");
const lzw = (s) => { // every letter by itself, until codes would have ten bits
  let bits = [256, ...[...s].map((c) => c.charCodeAt(0)), 257].map((c) => c.toString(2).padStart(9, "0")).join("");
  bits = bits.padEnd(Math.ceil(bits.length / 8) * 8, "0");
  return bits.match(/.{8}/g).map((b) => String.fromCharCode(parseInt(b, 2))).join("");
};
await gives("LZW", pages([stream(lzw(HELLO), "/Filter/LZWDecode")]), "Hello");
await gives("LZW with entries of its table", pages([stream(binary([128, 11, 96, 80, 34, 12, 12, 133, 1]), "/Filter/LZWDecode")]), {reason: "empty"}); // the standard's example: no text
const rows = HELLO.padEnd(30, " ").match(/.{10}/g), up = rows.map((r, i) => `\x02${[...r].map((c, k) => String.fromCharCode((c.charCodeAt(0) - (i ? rows[i - 1].charCodeAt(k) : 0)) & 255)).join("")}`).join("");
await gives("a predictor", pages([flate(up, "/DecodeParms<</Predictor 12/Columns 10>>")]), "Hello");
await gives("a wrong length", pages([`<</Length 3>>\nstream\n${HELLO}\nendstream`]), "Hello");
await gives("a length that stands elsewhere", pages([`<</Length 7 0 R>>\nstream\r\n${HELLO}\r\nendstream`], HELVETICA, {7: `${HELLO.length}`}), "Hello");

// ---- fonts ----

const cmap = (body) => flate(`begincmap 1 begincodespacerange <0000> <FFFF> endcodespacerange ${body} endcmap`);
const composite = (w = "") => `<</Type/Font/Subtype/Type0/Encoding/Identity-H/ToUnicode 4 0 R/DescendantFonts[<</DW 500${w}>>]>>`;
await shows("a ToUnicode map", "BT /F 10 Tf <0001000200100011> Tj ET", "Aﬁxy", composite(),
  {4: cmap("2 beginbfchar <0001> <0041> <0002> <FB01> endbfchar 1 beginbfrange <0010> <0012> <0078> endbfrange")});
await shows("letters beyond 16 bits, and several for one", "BT /F 10 Tf <00010002> Tj ET", "😀ffi", composite(),
  {4: cmap("1 beginbfrange <0001> <0002> [<D83DDE00> <006600660069>] endbfrange")});
await shows("widths of a composite font", "BT /F 10 Tf <0001> Tj 21 0 Td <0001> Tj 24 0 Td <0001> Tj ET", "AA A", composite("/W[1[2000]]"),
  {4: cmap("1 beginbfchar <0001> <0041> endbfchar")});
await shows("Chinese by the name of its map", "BT /F 10 Tf <4F60597D> Tj ET", "你好", "<</Type/Font/Subtype/Type0/Encoding/UniGB-UCS2-H/DescendantFonts[<<>>]>>");
await shows("names of glyphs", "BT /F 10 Tf (ABCDE) Tj ET", "éﬁ—Δx".replace("ﬁ", "fi"), "<</Type/Font/Subtype/Type1/Encoding<</Differences[65/eacute/fi 67/emdash/uni0394/x.alt]>>>>");
await shows("a font's own names", "BT /F 10 Tf (\x0b\x0e) Tj ET", "ffffi", "<</Type/Font/Subtype/Type1/FontDescriptor<</FontFile 6 0 R>>>>",
  {6: flate("%!PS\n/Encoding 256 array\ndup 11 /ff put\ndup 14 /ffi put\nreadonly def\ncurrentfile eexec")});
await shows("fonts that say nothing", "BT /F 10 Tf <00010002> Tj ET", {reason: "fonts"}, "<</Type/Font/Subtype/Type0/Encoding/Identity-H/DescendantFonts[<<>>]>>");

test("glyphs", () => {
  assert.deepEqual(["A", "quoteright", "Odieresis", "germandbls", "u1F600", "f_f_i", "uni00410042", ".notdef", "g23"].map(glyphText), ["A", "’", "Ö", "ß", "😀", "ffi", "AB", "\ufffd", "\ufffd"]);
});
test("a map is no larger than its limit", () => {
  const {map} = readCMap(latin1("1 beginbfrange <00000000> <FFFFFFFF> <0041> endbfrange"));
  assert.equal(map.size, LIMITS.codes);
});

// ---- files ----

await gives("pages in their order", pages([stream("BT /F 9 Tf (one) Tj ET"), stream("BT /F 9 Tf (two) Tj ET")]), "one\n\ntwo");
await gives("the newest of an object holds", new Uint8Array([...pages([stream("BT /F 9 Tf (old) Tj ET")]), ...latin1(`\n11 0 obj\n${stream("BT /F 9 Tf (new) Tj ET")}\nendobj\n`)]), "new");
const packed = "<</Type/Catalog/Pages 2 0 R>> <</Kids[10 0 R]>>", at = packed.indexOf("<</Kids");
await gives("objects within streams", file({
  8: flate(`1 0 2 ${at} ${packed}`, `/Type/ObjStm/N 2/First ${`1 0 2 ${at} `.length}`), 10: `<</Resources<</Font<</F ${HELVETICA}>>>>/Contents 11 0 R>>`, 11: flate(HELLO),
  9: stream("", "/Type/XRef/Root 1 0 R")}, ""), "Hello");
await gives("an encrypted file", pages([stream(HELLO)], HELVETICA, {9: stream("", "/Type/XRef/Root 1 0 R/Encrypt 12 0 R")}), {reason: "encrypted"});
await gives("pictures of pages", pages([stream("q 1 0 0 1 0 0 cm /Im Do Q")]), {reason: "empty"});
await gives("a file of another kind", latin1("<html>"), {reason: "not pdf"});
await gives("no pages", latin1("%PDF-1.4\n%%EOF"), {reason: "damaged"});
await gives("pages that hold themselves", file({1: "<</Pages 2 0 R>>", 2: "<</Kids[2 0 R 3 0 R]>>", 3: "<</Kids[2 0 R]>>"}), {reason: "damaged"});
await gives("values without end", latin1(`%PDF-1.4\n1 0 obj\n${"[".repeat(10000)}`), {reason: "damaged"});
const {...limits} = LIMITS;
Object.assign(LIMITS, {inflated: 1000, pages: 3, words: 100});
await gives("a stream that becomes too large", pages([flate(" ".repeat(1001))]), {reason: "large"});
await gives("a page that takes too long", pages([stream("q Q ".repeat(100))]), {reason: "large"});
const many = await pdfText(pages(Array.from({length: 4}, () => stream("BT /F 9 Tf (x) Tj ET"))));
test("pages beyond the limit are counted", () => assert.deepEqual([many.pages, many.read], [4, 3]));
Object.assign(LIMITS, limits);

const whole1 = pages([flate(HELLO)], composite(), {4: cmap("1 beginbfchar <0001> <0041> endbfchar")}), next = random(7);
const failures = [];
for (let i = 0; i < 300; i++) { // whatever the damage: a text or a reason
  const damaged = whole1.slice(0, next(2) ? whole1.length : next(whole1.length));
  for (let k = next(6); k >= 0; k--) damaged[9 + next(damaged.length)] = next(256);
  try { await read(damaged); } catch (e) { failures.push(e.stack); }
}
test("damaged files end well", () => assert.deepEqual(failures, []));

// ---- what is sent ----

test("pictures stand before the text, texts within it", () => {
  const image = "data:image/png;base64,AAAA";
  assert.equal(contentOf({content: "hi"}), "hi");
  assert.equal(whole({content: "hi", files: [{name: "a", text: "x"}, {name: "p", image}]}), "a:\n```\nx\n```\n\nhi");
  assert.deepEqual(contentOf({content: "hi", files: [{name: "p", image}]}), [{type: "image_url", image_url: {url: image}}, {type: "text", text: "hi"}]);
  assert.deepEqual(contentOf({content: "", files: [{name: "p", image}]}), [{type: "image_url", image_url: {url: image}}]);
});
test("only pictures are pictures", () => {
  assert.deepEqual(["data:image/png;base64,AAAA", "data:image/jpeg;base64,AA==", "data:image/svg+xml;base64,AAAA", "https://x/y.png", "data:image/png;base64,", "data:text/html,x", 5, undefined].map(isPicture),
    [true, true, false, false, false, false, false, false]);
});
