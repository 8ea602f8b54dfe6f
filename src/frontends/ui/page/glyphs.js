// SPDX-License-Identifier: Apache-2.0
// Which letters the glyphs of PDF fonts are, by their names. Source: Adobe's rules for glyph names (uniXXXX, a_b, a.alt), and
// the names of the Latin character set in ISO 32000-1, annex D.

const named = {};
const name = (names, letters) => { const list = [...letters]; names.split(" ").forEach((s, i) => { named[s] = list[i]; }); };
name("space exclam quotedbl numbersign dollar percent ampersand quotesingle parenleft parenright asterisk plus comma hyphen period slash", " !\"#$%&'()*+,-./");
name("zero one two three four five six seven eight nine colon semicolon less equal greater question at", "0123456789:;<=>?@");
name("bracketleft backslash bracketright asciicircum underscore braceleft bar braceright asciitilde", "[\\]^_{|}~");
name("quoteleft quoteright quotedblleft quotedblright quotesinglbase quotedblbase guilsinglleft guilsinglright guillemotleft guillemotright", "‘’“”‚„‹›«»");
name("endash emdash bullet ellipsis dagger daggerdbl perthousand periodcentered fraction minus florin Euro trademark", "–—•…†‡‰·⁄−ƒ€™");
name("exclamdown cent sterling currency yen brokenbar section copyright ordfeminine logicalnot registered degree plusminus mu paragraph", "¡¢£¤¥¦§©ª¬®°±µ¶");
name("twosuperior threesuperior onesuperior ordmasculine onequarter onehalf threequarters questiondown multiply divide", "²³¹º¼½¾¿×÷");
name("AE ae OE oe Oslash oslash Lslash lslash Eth eth Thorn thorn germandbls dotlessi dotlessj Dcroat dcroat", "ÆæŒœØøŁłÐðÞþßıȷĐđ");
name("grave acute circumflex tilde macron breve dotaccent dieresis ring cedilla hungarumlaut ogonek caron", "`´ˆ˜¯˘˙¨˚¸˝˛ˇ");
name("Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho Sigma Tau Upsilon Phi Chi Psi Omega", "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ");
name("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda nu xi omicron pi rho sigma tau upsilon phi chi psi omega", "αβγδεζηθικλνξοπρστυφχψω");
name("summation product integral radical infinity partialdiff approxequal notequal lessequal greaterequal lozenge element arrowright arrowleft", "∑∏∫√∞∂≈≠≤≥◊∈→←");
Object.assign(named, {ff: "ff", fi: "fi", fl: "fl", ffi: "ffi", ffl: "ffl", nbspace: " ", sfthyphen: "", nonbreakingspace: " "});

const accents = {grave: "\u0300", acute: "\u0301", circumflex: "\u0302", tilde: "\u0303", macron: "\u0304", breve: "\u0306", dotaccent: "\u0307",
  dieresis: "\u0308", ring: "\u030a", hungarumlaut: "\u030b", caron: "\u030c", cedilla: "\u0327", ogonek: "\u0328", commaaccent: "\u0326"};

// U+FFFD where the name says nothing.
export function glyphText(glyph) {
  if (glyph.length > 1 && glyph.includes(".") && glyph !== ".notdef") return glyphText(glyph.slice(0, glyph.indexOf(".")));
  if (Object.hasOwn(named, glyph)) return named[glyph];
  if (/^[A-Za-z]$/.test(glyph)) return glyph;
  if (glyph.includes("_")) return glyph.split("_").map((g) => g && glyphText(g)).join("");
  const code = /^uni((?:[0-9A-F]{4})+)$/.exec(glyph) || /^u([0-9A-F]{4,6})$/.exec(glyph);
  if (code) {
    const parts = glyph.startsWith("uni") ? code[1].match(/.{4}/g) : [code[1]];
    return parts.map((h) => parseInt(h, 16)).filter((n) => n <= 0x10ffff).map((n) => String.fromCodePoint(n)).join("");
  }
  const accented = /^([A-Za-z])([a-z]+)$/.exec(glyph), mark = accented && accents[accented[2]];
  return mark ? (accented[1] + mark).normalize("NFC") : "\ufffd";
}

// The 256 letters of WinAnsiEncoding.
export const winAnsiText = () => [...Array.from({length: 128}, (_, i) => String.fromCharCode(i)), ..."€•‚ƒ„…†‡ˆ‰Š‹Œ•Ž••‘’“”•–—˜™š›œ•žŸ",
  ...Array.from({length: 96}, (_, i) => String.fromCharCode(160 + i))];

// The 256 letters of StandardEncoding.
export function standardText() {
  const table = Array.from({length: 256}, (_, i) => i >= 32 && i < 127 ? String.fromCharCode(i) : "\ufffd");
  const put = (from, letters) => [...letters].forEach((c, i) => { if (c !== "_") table[from + i] = c; });
  put(0x27, "’");
  put(0x60, "‘");
  put(0xa1, "¡¢£⁄¥ƒ§¤'“«‹›__–†‡·_¶•‚„”»…‰_¿_`´ˆ˜¯˘˙¨_˚¸_˝˛ˇ—");
  table[0xae] = "fi";
  table[0xaf] = "fl";
  put(0xe1, "Æ_ª____ŁØŒº");
  put(0xf1, "æ___ı__łøœß");
  return table;
}
