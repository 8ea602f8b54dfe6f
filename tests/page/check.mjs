// SPDX-License-Identifier: Apache-2.0
// What the tests of single modules share: a case with a name, an exit status that tells of failures.
import assert from "node:assert/strict";
import {webcrypto} from "node:crypto";
import {pathToFileURL} from "node:url";

globalThis.crypto ??= webcrypto; // Node 18
export {assert};
// test_modules.py gives a copy beside a package.json, without which older releases take .js for the other kind.
export const PAGE = process.env.PAGE ? pathToFileURL(`${process.env.PAGE}/`) : new URL("../../src/frontends/ui/page/", import.meta.url);
export const load = (name) => import(new URL(name, PAGE));

let failed = 0, run = 0;
export function test(name, body) {
  run++;
  try {
    body();
  } catch (e) {
    failed++;
    console.error(`FAILED ${name}\n${e.stack}\n`);
  }
}
process.on("exit", () => {
  console.log(`${run - failed} passed, ${failed} failed`);
  if (failed || !run) process.exitCode = 1;
});

// Numbers from a seed, the same every time.
export function random(seed) {
  let s = seed >>> 0;
  return (n) => {
    s = (Math.imul(s, 1664525) + 1013904223) >>> 0;
    return Math.floor(s / 2 ** 32 * n);
  };
}
