// SPDX-License-Identifier: Apache-2.0
// What every file of the page uses: elements, numbers, what the browser keeps, where the server is.
export const $ = (id) => document.getElementById(id);

// The server's root as this page sees it: behind a proxy it may lie below a path.
export const base = new URL("..", import.meta.url).href;

export function el(tag, props = {}, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children);
  return e;
}

// A button with a text, or a sign whose name only screen readers and the tooltip tell.
export function button(text, onclick, props = {}) {
  const {label, ...rest} = props;
  const b = el("button", {type: "button", textContent: text, ...rest});
  if (label) { b.setAttribute("aria-label", label); b.title = label; }
  b.onclick = onclick;
  return b;
}

export function number(v, digits = 0) {
  if (v === null || v === undefined || !Number.isFinite(v)) return "–";
  return v.toFixed(digits).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

// Small things that are kept: `store` is local (for good) or session (until the tab is closed). A browser
// may refuse to keep anything; then it is not kept.
export const local = () => localStorage, session = () => sessionStorage;
export function kept(store, key, value) {
  try {
    if (value === undefined) return store().getItem(`nereid.${key}`);
    store().setItem(`nereid.${key}`, value);
  } catch { /* as said above */ }
  return null;
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  const a = el("a", {href: url, download: name});
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
