// SPDX-License-Identifier: Apache-2.0
// Colours for code: highlight(text, language) gives [[kind, text], ...] whose texts joined are the text.
// Kinds: c comment, s string, n number, k keyword, f function, t name of a tag, key or heading; "" the rest.
// A scanner with a table for each family of languages, not a parser: one pass, no back-tracking.

const words = (s) => new Set(s.split(/\s+/));
const C = "if else for while do switch case break continue return default goto sizeof typedef struct union enum static const extern inline volatile void int char short long float double unsigned signed bool true false NULL";
const families = {
  c: {line: ["//"], block: ["/*", "*/"], quotes: "\"'", words: words(`${C} restrict register auto class public private protected namespace template typename virtual override new delete using this nullptr constexpr try catch throw operator friend noexcept concept requires co_await __global__ __device__ __shared__`)},
  java: {line: ["//"], block: ["/*", "*/"], quotes: "\"'", words: words(`${C} abstract boolean byte class extends final finally implements import instanceof interface native new null package private protected public super synchronized this throw throws try catch var record sealed fun val when object companion data override open suspend string decimal using namespace async await foreach in is as out ref get set internal readonly partial yield let guard func protocol init self nil extension where trait def type implicit lazy match with`)},
  js: {line: ["//"], block: ["/*", "*/"], quotes: "\"'`", words: words("async await break case catch class const continue debugger default delete do else export extends finally for from function get if import in instanceof let new null of return set static super switch this throw true false try typeof undefined var void while with yield interface type enum implements private public protected readonly abstract declare namespace keyof infer as is any number string boolean never unknown satisfies")},
  go: {line: ["//"], block: ["/*", "*/"], quotes: "\"'`", words: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil string int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 float32 float64 bool byte rune error any make len cap append")},
  rust: {line: ["//"], block: ["/*", "*/"], quotes: "\"", words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while i8 i16 i32 i64 u8 u16 u32 u64 isize usize f32 f64 bool str String Vec Option Result Some None Ok Err Box")},
  python: {line: ["#"], quotes: "\"'", triple: true, words: words("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield True False None self match case print len range int str float list dict set tuple bool")},
  ruby: {line: ["#"], quotes: "\"'`", words: words("alias and begin break case class def defined? do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require attr_accessor puts")},
  sh: {line: ["#"], quotes: "\"'", dollar: true, words: words("if then else elif fi for while until do done case esac in function return exit export local readonly set unset shift source echo cd sudo test true false")},
  sql: {line: ["--"], block: ["/*", "*/"], quotes: "'\"", fold: true, words: words("select from where insert into values update set delete create table drop alter add column index view join inner left right outer full on as and or not null is in like between exists group by order having limit offset union all distinct case when then else end primary key foreign references default unique check constraint begin commit rollback with recursive returning count sum avg min max int integer text varchar boolean date timestamp true false")},
  lua: {line: ["--"], quotes: "\"'", words: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while")},
  r: {line: ["#"], quotes: "\"'", words: words("if else repeat while function for in next break TRUE FALSE NULL Inf NaN NA library return")},
  php: {line: ["//", "#"], block: ["/*", "*/"], quotes: "\"'", dollar: true, words: words("abstract and array as break case catch class const continue declare default do echo else elseif extends final finally fn for foreach function global if implements include instanceof interface isset match namespace new null or print private protected public require return static switch throw trait true false try use var while yield")},
  json: {quotes: "\"", keys: true, words: words("true false null")},
  yaml: {line: ["#"], quotes: "\"'", keys: true, words: words("true false null yes no on off")},
  css: {block: ["/*", "*/"], quotes: "\"'", keys: true, words: words("important")},
  make: {line: ["#"], quotes: "\"'", dollar: true, keys: true, words: words("ifeq ifneq ifdef ifndef else endif include define endef export FROM RUN COPY CMD ENTRYPOINT ENV ARG WORKDIR EXPOSE USER VOLUME ADD LABEL AS")},
};
const names = {c: "c h cpp c++ cc cxx hpp cuda cu objc objective-c glsl arduino", java: "java kotlin kt swift csharp cs c# scala dart groovy",
  js: "js javascript jsx ts typescript tsx mjs node", go: "go golang", rust: "rust rs zig", python: "python py python3 ipython", ruby: "ruby rb elixir perl",
  sh: "sh bash shell zsh console shell-session terminal fish powershell ps1", sql: "sql mysql postgresql postgres sqlite plsql", lua: "lua haskell hs",
  r: "r julia jl", php: "php", json: "json jsonc json5 jsonl", yaml: "yaml yml toml ini cfg conf properties env", css: "css scss less",
  make: "make makefile dockerfile docker cmake nginx"};
const family = new Map(Object.entries(names).flatMap(([f, list]) => list.split(" ").map((n) => [n, families[f]])));

const NAME = /[\p{L}_$][\p{L}\p{N}_$]*\??/uy, NUMBER = /0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?[a-zA-Z%]{0,3}/y;

function scan(text, f) {
  const out = [];
  let plain = "", i = 0;
  const put = (kind, s) => {
    if (plain) out.push(["", plain]);
    plain = "";
    out.push([kind, s]);
    i += s.length;
  };
  const until = (mark, from) => {
    const at = text.indexOf(mark, from);
    return at < 0 ? text.length : at + mark.length;
  };
  const keyBehind = (end) => {
    let k = end;
    while (text[k] === " ") k++;
    return text[k] === ":" || (text[k] === "=" && text[k + 1] !== "=");
  };
  while (i < text.length) {
    const c = text[i], line = f.line && f.line.find((m) => text.startsWith(m, i));
    if (line && !(line === "#" && i && !/\s/.test(text[i - 1]))) {
      const end = text.indexOf("\n", i);
      put("c", text.slice(i, end < 0 ? text.length : end));
    } else if (f.block && text.startsWith(f.block[0], i)) {
      put("c", text.slice(i, until(f.block[1], i + f.block[0].length)));
    } else if (f.triple && (text.startsWith('"""', i) || text.startsWith("'''", i))) {
      put("s", text.slice(i, until(text.slice(i, i + 3), i + 3)));
    } else if (f.quotes.includes(c)) {
      let end = i + 1;
      while (end < text.length && text[end] !== c && (c === "`" || text[end] !== "\n")) end += text[end] === "\\" ? 2 : 1;
      end = Math.min(text.length, text[end] === c ? end + 1 : end);
      put(f.keys && keyBehind(end) ? "t" : "s", text.slice(i, end));
    } else if (/\d/.test(c)) {
      NUMBER.lastIndex = i;
      put("n", NUMBER.exec(text)[0]);
    } else {
      NAME.lastIndex = i;
      const m = NAME.exec(text);
      if (!m) {
        plain += c;
        i++;
        continue;
      }
      let s = m[0];
      if (s.endsWith("?") && !f.words.has(s)) s = s.slice(0, -1);
      if (f.dollar && s[0] === "$") put("t", s);
      else if (f.words.has(f.fold ? s.toLowerCase() : s)) put("k", s);
      else if (f.keys && keyBehind(i + s.length)) put("t", s);
      else if (text[i + s.length] === "(") put("f", s);
      else { plain += s; i += s.length; }
    }
  }
  if (plain) out.push(["", plain]);
  return out;
}

function markup(text) { // HTML, XML, SVG
  const out = [];
  let at = 0;
  for (const m of text.matchAll(/<!--[^]*?(?:-->|$)|<\/?[a-zA-Z][\w:.-]*|"[^"<>\n]*"|'[^'<>\n]*'|\/?>/g)) {
    if (m.index > at) out.push(["", text.slice(at, m.index)]);
    out.push([m[0].startsWith("<!--") ? "c" : /^["']/.test(m[0]) ? "s" : "t", m[0]]);
    at = m.index + m[0].length;
  }
  if (at < text.length) out.push(["", text.slice(at)]);
  return out;
}

const diff = (text) => text.split(/(?<=\n)/).map((l) => [/^(?:---|\+\+\+|@@|diff )/.test(l) ? "k" : l[0] === "+" ? "add" : l[0] === "-" ? "del" : "", l]);

export function highlight(text, language) {
  const name = (language || "").toLowerCase();
  if (/^(?:html|xml|svg|vue|xhtml)$/.test(name)) return markup(text);
  if (name === "diff" || name === "patch") return diff(text);
  const f = family.get(name);
  return f && text ? scan(text, f) : text ? [["", text]] : [];
}
