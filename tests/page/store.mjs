// SPDX-License-Identifier: Apache-2.0
import {assert, load, test} from "./check.mjs";

const {FORMAT, LIMITS, addNode, childrenOf, exportText, importText, leafOf, matches, newConversation, openStore, pathTo,
  removeBranch, titleOf} = await load("store.js");

const said = (c) => pathTo(c).map((n) => n.content).join(" ");
function sample() { // a question, two answers, a follow-up below the second
  const c = newConversation(1000);
  const q = addNode(c, 0, {role: "user", content: "q"}, 1001);
  const a = addNode(c, q.id, {role: "assistant", model: "m", content: "a1"}, 1002);
  const b = addNode(c, q.id, {role: "assistant", model: "m", content: "a2"}, 1003);
  addNode(c, b.id, {role: "user", content: "q2"}, 1004);
  return {c, q, a, b};
}

test("a branch is shown from its root to its head", () => {
  const {c, a, b} = sample();
  assert.equal(said(c), "q a2 q2");
  c.head = leafOf(c, a.id);
  assert.equal(said(c), "q a1");
  c.head = leafOf(c, b.id);
  assert.equal(said(c), "q a2 q2");
  assert.deepEqual(childrenOf(c).get(1), [2, 3]);
});

test("what is taken away goes with all that follows, and a sibling is shown", () => {
  const {c, q, b} = sample();
  removeBranch(c, b.id);
  assert.equal(said(c), "q a1");
  assert.deepEqual(Object.keys(c.nodes), ["1", "2"]);
  removeBranch(c, q.id);
  assert.equal(c.head, 0);
  assert.deepEqual(c.nodes, {});
  assert.equal(addNode(c, 0, {role: "user", content: "new"}).id, 5); // numbers are not used twice
});

test("a branch that is not shown goes without a change of the view", () => {
  const {c, a} = sample();
  removeBranch(c, a.id);
  assert.equal(said(c), "q a2 q2");
});

test("a title is the first line with words", () => {
  assert.equal(titleOf("\n\n## Hello *you*\nmore"), "Hello *you*");
  assert.equal(titleOf("word ".repeat(40)).length <= 60, true);
  assert.equal(titleOf(""), "");
  const {c} = sample();
  assert.equal(c.title, "q");
});

test("what was exported is imported as it was", () => {
  const {c} = sample();
  Object.assign(c.nodes[1], {files: [{name: "a.txt", text: "x\0y"}]});
  Object.assign(c.nodes[2], {reasoning: "r", tokens: 7, note: ["7 tokens"], calls: [{id: "i", name: "f", arguments: "{}"}], group: 2, json: true});
  assert.deepEqual(importText(exportText([c])), [c]);
});

test("OpenAI's messages are imported", () => {
  const list = [{role: "system", content: "s"}, {role: "user", content: "hello"}, {role: "assistant", content: "there"}];
  for (const doc of [list, {messages: list}, [{messages: list}], {conversations: [{messages: list, title: "T"}]}]) {
    const [c] = importText(JSON.stringify(doc));
    assert.equal(said(c), "hello there");
  }
});

const file = (conversation) => JSON.stringify({format: FORMAT, version: 1, conversations: [conversation]});
const node = (more = {}) => ({id: 1, parent: 0, role: "user", content: "x", ...more});
for (const [text, what] of [
  ["", /not JSON/], ["{", /not JSON/], ["7", /conversation 1: not an object/], ["null", /not an object/], ["{}", /no nodes/],
  [JSON.stringify({format: FORMAT, version: 2, conversations: []}), /version 2.*expected 1/],
  [file({nodes: {1: node({id: 0})}}), /number of its own/], [file({nodes: {1: node(), 2: node()}}), /number of its own/],
  [file({nodes: {1: node({parent: 1})}}), /message 1: its parent must have a smaller number/],
  [file({nodes: {1: node({id: 5, parent: 4})}}), /parent 4 is not there/],
  [file({nodes: {1: node({role: "robot"})}}), /unknown role/], [file({nodes: {1: node({content: 5})}}), /text is missing/],
  [JSON.stringify([{messages: [{role: "user"}]}]), /messages\[0\]/], [JSON.stringify([{messages: [null]}]), /messages\[0\]/],
]) {
  test(`refused: ${text.slice(0, 70)}`, () => assert.throws(() => importText(text), what));
}

test("nothing unknown comes in", () => {
  const [c] = importText(file({title: "t", evil: 1, head: 99, id: "../x", created: -5, nodes: {1: node({evil: 1, model: 7, files: [{name: "n"}, null, {name: "k", text: "t", evil: 2}], calls: [1], note: [{}, "ok"]})}}));
  assert.deepEqual(Object.keys(c).sort(), ["changed", "created", "head", "id", "named", "next", "nodes", "title"]);
  assert.deepEqual(c.nodes[1].files, [{name: "k", text: "t"}]);
  assert.deepEqual([c.nodes[1].calls, c.nodes[1].note, c.nodes[1].evil, c.nodes[1].model], [[], ["ok"], undefined, undefined]);
  assert.match(c.id, /^[0-9a-f]{24}$/);
  assert.equal(c.head, 1);
  const proto = importText('{"nodes": {"1": {"id": 1, "parent": 0, "role": "user", "content": "x", "__proto__": {"a": 1}}}}')[0];
  assert.equal(proto.nodes[1].a, undefined);
});

test("too much is refused with the limit", () => {
  assert.throws(() => importText(JSON.stringify(Array(LIMITS.conversations + 1).fill(0))), /20000 conversations/);
  const long = file({nodes: {1: node({content: "x".repeat(LIMITS.text + 1)})}});
  assert.throws(() => importText(long), /longer than 8388608/);
});

test("text and names of files are searched", () => {
  const {c} = sample();
  c.nodes[1].files = [{name: "Notes.TXT", text: ""}];
  assert.deepEqual(["a1", "notes", "zz"].map((s) => matches(c, s)), [true, true, false]);
});

// Without IndexedDB (here there is none) the same functions hold for as long as the page.
const memory = await openStore("x");
const {c} = sample();
await memory.put(c);
c.title = "changed later";
const again = await memory.get(c.id), heads = await memory.list();
await memory.remove(c.id);
const rest = await memory.list();
test("without IndexedDB it lives in memory", () => {
  assert.equal(memory.kept, false);
  assert.equal(again.title, "q");
  assert.deepEqual([heads.length, rest.length], [1, 0]);
  assert.equal(heads[0].nodes, undefined);
});
