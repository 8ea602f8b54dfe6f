// SPDX-License-Identifier: Apache-2.0
// Runs before the first paint, so that a chosen theme or language does not flash in later, and begins the rest
// behind it, so that the paint need not wait for the modules. Not a module itself: those come later.
(() => {
  const kept = (key) => { try { return localStorage.getItem(`nereid.${key}`); } catch { return null; } };
  const root = document.documentElement, theme = kept("theme");
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  const language = kept("language");
  root.lang = language === "en" || language === "zh" ? language : /^zh\b/i.test(navigator.language) ? "zh" : "en";
  const begin = () => import("./chat.js"); // a module runs once, however often it is asked for
  requestAnimationFrame(() => setTimeout(begin));
  setTimeout(begin, 500); // in a tab that is not shown there are no frames
})();
