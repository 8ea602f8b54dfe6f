// SPDX-License-Identifier: Apache-2.0
// The TeX that models write, as MathML, which browsers draw themselves: mathml("x^2") gives a tree
// [tag, attributes, ...children], or null where something is not known, so that the page shows the source.
// Source: MathML Core; the symbols are those of LaTeX and amsmath.

const MAX_LENGTH = 4000, MAX_DEPTH = 40;

const map = (s) => new Map(s.trim().split(/\s+/).map((p) => p.split("=")));
const LETTERS = map(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ
  lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
  Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ
  infty=∞ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ wp=℘ angle=∠ degree=° prime=′ top=⊤ bot=⊥`);
const OPERATORS = map(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ wedge=∧ land=∧
  vee=∨ lor=∨ cap=∩ cup=∪ setminus=∖ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ equiv=≡ approx=≈ sim=∼ simeq=≃ cong=≅
  propto=∝ mid=∣ parallel=∥ perp=⊥ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ to=→ rightarrow=→ leftarrow=←
  leftrightarrow=↔ Rightarrow=⇒ implies=⟹ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ mapsto=↦ longrightarrow=⟶ uparrow=↑ downarrow=↓
  forall=∀ exists=∃ neg=¬ lnot=¬ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ colon=: therefore=∴ because=∵ models=⊨ vdash=⊢
  langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖ vert=| Vert=‖ backslash=\\ triangle=△
  preceq=⪯ succeq=⪰ prec=≺ succ=≻ coloneqq=≔ square=□ blacksquare=■ checkmark=✓ dagger=†`);
const LARGE = map(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀`);
const INTEGRALS = map(`int=∫ iint=∬ iiint=∭ oint=∮`);
const WORDS = new Set(`sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp det dim ker deg gcd lcm arg hom Pr`.split(" "));
const LIMITS = new Set(`lim max min sup inf argmax argmin limsup liminf`.split(" "));
const SPACES = map(`,=0.17em :=0.22em ;=0.28em quad=1em qquad=2em !=-0.17em`);
const ACCENTS = map(`hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ dot=˙ ddot=¨ tilde=~ widetilde=~`);
const FENCES = {matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], Bmatrix: ["{", "}"],
  Vmatrix: ["‖", "‖"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], array: ["", ""],
  equation: ["", ""], "equation*": ["", ""], split: ["", ""], smallmatrix: ["", ""]};
const STYLES = {mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double", mathrm: "normal", mathcal: "script", mathit: "", mathsf: "normal",
  mathfrak: "", operatorname: "normal", mathtt: "normal"};
const DOUBLE = map("R=ℝ N=ℕ Z=ℤ Q=ℚ C=ℂ P=ℙ H=ℍ E=𝔼 F=𝔽 K=𝕂 1=𝟙");

class Unknown extends Error {}

function tokens(tex) {
  const out = [];
  for (const m of tex.matchAll(/\\(?:[a-zA-Z]+\*?|[^a-zA-Z])|%[^\n]*|[0-9]+(?:[.,][0-9]+)*|\s+|[^\s]/gu)) {
    if (m[0][0] !== "%") out.push(m[0]);
  }
  return out;
}

const row = (list) => list.length === 1 ? list[0] : ["mrow", {}, ...list];
const op = (s, attributes = {}) => ["mo", attributes, s];

export function mathml(tex, block = false) {
  if (tex.length > MAX_LENGTH) return null;
  try {
    const p = parser(tokens(tex));
    const body = p.list(() => false, 0);
    if (!body.length) return null;
    return ["math", block ? {display: "block"} : {}, ...body];
  } catch (e) {
    if (e instanceof Unknown) return null;
    throw e;
  }
}

function parser(ts) {
  let i = 0;
  const skip = () => { while (ts[i] !== undefined && !ts[i].trim()) i++; };

  // {…} with its braces, or one token, as text.
  function raw() {
    skip();
    if (ts[i] !== "{") { if (ts[i] === undefined) throw new Unknown(); return ts[i++]; }
    let depth = 0, s = "";
    do {
      if (ts[i] === undefined) throw new Unknown();
      if (ts[i] === "{") depth++;
      if (ts[i] === "}") depth--;
      s += ts[i++];
    } while (depth);
    return s.slice(1, -1);
  }

  function argument(depth) {
    skip();
    if (ts[i] === "{") {
      i++;
      const c = list((x) => x === "}", depth + 1);
      if (ts[i++] !== "}") throw new Unknown();
      return row(c);
    }
    if (/^[0-9]{2}/.test(ts[i] || "")) ts.splice(i, 1, ts[i][0], ts[i].slice(1)); // \frac12 is a half
    const a = atom(depth + 1);
    if (!a) throw new Unknown();
    return a;
  }

  function fence() { // behind \left, \right, \big
    skip();
    const x = ts[i++];
    if (x === undefined) throw new Unknown();
    if (x === ".") return "";
    const name = x[0] === "\\" ? x.slice(1) : "";
    return name ? OPERATORS.get(name) || (/^[{}|]$/.test(name) ? (name === "|" ? "‖" : name) : (() => { throw new Unknown(); })()) : x;
  }

  function table(name, depth) {
    if (name === "array") raw(); // where the columns stand
    const rows = [];
    let cells = [];
    for (;;) {
      cells.push(["mtd", {}, ...list((x) => x === "&" || x === "\\\\" || x === "\\end", depth + 1)]);
      const x = ts[i++];
      if (x === "&") continue;
      if (x === undefined) throw new Unknown();
      if (x === "\\\\" || cells.some((c) => c.length > 2)) rows.push(["mtr", {}, ...cells]);
      cells = [];
      if (x === "\\end") break;
    }
    if (raw() !== name) throw new Unknown();
    const [left, right] = FENCES[name];
    const aligned = name === "cases" || name.startsWith("align") || name === "split";
    const t = ["mtable", aligned ? {class: name === "cases" ? "cases" : "aligned", displaystyle: String(name !== "cases")} : {}, ...rows];
    return left || right ? ["mrow", {}, op(left, {stretchy: "true"}), t, ...(right ? [op(right, {stretchy: "true"})] : [])] : t;
  }

  function command(name, depth) {
    if (LETTERS.has(name)) return ["mi", /^[A-Z]/.test(name) || "∞∂∇∅ℏ∠°′⊤⊥".includes(LETTERS.get(name)) ? {mathvariant: "normal"} : {}, LETTERS.get(name)];
    if (OPERATORS.has(name)) return op(OPERATORS.get(name), /^[lr](?:angle|floor|ceil|vert|Vert)$/.test(name) ? {stretchy: "false"} : {});
    if (LARGE.has(name)) return op(LARGE.get(name), {movablelimits: "true", largeop: "true"});
    if (INTEGRALS.has(name)) return op(INTEGRALS.get(name), {largeop: "true"});
    if (WORDS.has(name)) return ["mrow", {}, ["mi", {}, name], op("\u2061")];
    if (LIMITS.has(name)) return op(name.replace(/^(arg|lim)(max|min|sup|inf)$/, "$1 $2"), {movablelimits: "true", lspace: "0.1em", rspace: "0.17em", form: "prefix"});
    if (SPACES.has(name)) return ["mspace", {width: SPACES.get(name)}];
    if (ACCENTS.has(name)) return ["mover", {accent: "true"}, argument(depth), op(ACCENTS.get(name), {stretchy: String(/^(wide|over)/.test(name))})];
    if (name in STYLES) {
      const s = raw();
      if (!/^[\p{L}\p{N} ,.*'-]+$/u.test(s)) { // more than letters: drawn plainly
        const inner = parser(tokens(s)).list(() => false, depth + 1);
        return row(inner);
      }
      const variant = STYLES[name];
      if (variant === "double") return ["mi", {mathvariant: "normal"}, [...s].map((c) => DOUBLE.get(c) || c).join("")];
      return ["mi", variant === "bold" ? {class: "bold", mathvariant: "normal"} : variant === "normal" ? {mathvariant: "normal"} : {}, s];
    }
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return ["mfrac", {}, argument(depth), argument(depth)];
      case "binom": return ["mrow", {}, op("("), ["mfrac", {linethickness: "0"}, argument(depth), argument(depth)], op(")")];
      case "sqrt": {
        skip();
        if (ts[i] !== "[") return ["msqrt", {}, argument(depth)];
        i++;
        const n = row(list((x) => x === "]", depth + 1));
        if (ts[i++] !== "]") throw new Unknown();
        return ["mroot", {}, argument(depth), n];
      }
      case "text": case "textbf": case "textit": case "textrm": case "mbox": case "textsf": case "texttt":
        return ["mtext", {}, raw().replace(/\\(.)/g, "$1").replace(/^ | $/g, "\u00a0")];
      case "left": {
        const open = fence(), body = list((x) => x === "\\right", depth + 1);
        if (ts[i++] !== "\\right") throw new Unknown();
        const close = fence(), wide = {stretchy: "true"};
        return ["mrow", {}, ...(open ? [op(open, {...wide, form: "prefix"})] : []), ...body, ...(close ? [op(close, {...wide, form: "postfix"})] : [])];
      }
      case "middle": return op(fence(), {stretchy: "true"});
      case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": case "biggl": case "biggr": return op(fence());
      case "begin": {
        const env = raw();
        if (!(env in FENCES)) throw new Unknown();
        return table(env, depth);
      }
      case "underbrace": return ["munder", {}, ["munder", {}, argument(depth), op("⏟", {stretchy: "true"})], ["mrow", {}]];
      case "overbrace": return ["mover", {}, argument(depth), op("⏞", {stretchy: "true"})];
      case "underline": return ["munder", {}, argument(depth), op("_", {stretchy: "true"})];
      case "overset": case "stackrel": { const over = argument(depth); return ["mover", {}, argument(depth), over]; }
      case "underset": { const under = argument(depth); return ["munder", {}, argument(depth), under]; }
      case "boxed": return ["mrow", {class: "boxed"}, argument(depth)];
      case "pmod": return ["mrow", {}, op("("), ["mi", {}, "mod"], ["mspace", {width: "0.3em"}], argument(depth), op(")")];
      case "bmod": case "mod": return op("mod", {lspace: "0.3em", rspace: "0.3em"});
      case "not": { const [, , s] = argument(depth); if (typeof s !== "string") throw new Unknown(); return op(`${s}\u0338`); }
      case "displaystyle": case "textstyle": case "limits": case "nolimits": case "nonumber": case "notag": return ["mspace", {}];
      case "tag": return ["mtext", {}, `\u2003(${raw()})`];
      case "label": raw(); return ["mspace", {}];
      case "|": return op("‖", {stretchy: "false"});
      case "{": case "}": return op(name, {stretchy: "false"});
      case "%": case "#": case "$": case "&": case "_": return ["mi", {mathvariant: "normal"}, name];
      case " ": return ["mspace", {width: "0.25em"}];
      case "\\": return ["mspace", {linebreak: "newline"}];
      default: throw new Unknown();
    }
  }

  // One thing without its indices; null: there is none.
  function atom(depth) {
    if (depth > MAX_DEPTH) throw new Unknown();
    skip();
    const x = ts[i++];
    if (x === undefined) return null;
    if (x === "{") {
      i--;
      return argument(depth);
    }
    if (x === "}" || x === "&") throw new Unknown();
    if (x[0] === "\\") return command(x.slice(1), depth);
    if (/^[0-9]/.test(x)) return ["mn", {}, x];
    if (/^\p{L}$/u.test(x)) return ["mi", {}, x];
    if (x === "'") return op("′");
    if (x === "-") return op("−");
    if (x === "~") return ["mspace", {width: "0.25em"}];
    return op(x, /^[()[\]|/]$/.test(x) ? {stretchy: "false"} : {});
  }

  function list(ends, depth) {
    if (depth > MAX_DEPTH) throw new Unknown();
    const out = [];
    for (;;) {
      skip();
      if (ts[i] === undefined || ends(ts[i])) return out;
      if (ts[i] === "}" || ts[i] === "\\right" || ts[i] === "\\end") throw new Unknown();
      let base = ts[i] === "^" || ts[i] === "_" ? ["mrow", {}] : atom(depth), sub = null, sup = null;
      for (;;) {
        skip();
        if (ts[i] === "\\limits" || ts[i] === "\\nolimits") { i++; continue; }
        if (ts[i] === "'") {
          let marks = "";
          while (ts[i] === "'") { marks += "′"; i++; }
          if (sup) throw new Unknown();
          sup = op(marks);
          continue;
        }
        if (ts[i] !== "^" && ts[i] !== "_") break;
        const up = ts[i++] === "^";
        if (up ? sup : sub) {
          if (!up || sup[0] !== "mo") throw new Unknown();
          sup = ["mrow", {}, sup, argument(depth)];
        } else if (up) {
          sup = argument(depth);
        } else {
          sub = argument(depth);
        }
      }
      if (base[0] === "munder" && base.length === 4 && base[3].length === 2 && sub) { // what stands below an \underbrace
        base = ["munder", {}, base[2], sub];
        sub = null;
      }
      const around = base[1].movablelimits === "true" || (base[0] === "mover" && base[3] && base[3][2] === "⏞");
      if (sub && sup) out.push([around ? "munderover" : "msubsup", {}, base, sub, sup]);
      else if (sub) out.push([around ? "munder" : "msub", {}, base, sub]);
      else if (sup) out.push([around ? "mover" : "msup", {}, base, sup]);
      else out.push(base);
    }
  }

  return {list};
}
