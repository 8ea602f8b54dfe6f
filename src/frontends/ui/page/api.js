// SPDX-License-Identifier: Apache-2.0
// Requests to the server. Answers stream from /v1/chat/completions; a model without a chat template continues
// plain text through /v1/completions, a server without /v1 through /v2's generate_stream.
import {$, base} from "./dom.js";
import {t} from "./words.js";

export const plainTokens = 256; // of a text that is continued: a base model seldom ends by itself
export const plainModels = new Set(); // those that turned out to have no chat template
// Where neither the model nor the request says: as the server does (openai.md).
export const general = {temperature: 0.8, top_p: 0.95, min_p: 0.05, top_k: 40, repetition_penalty: 1};

// With the API key of the settings, where there is one.
export const headers = (more = {}) => $("key").value ? {...more, Authorization: `Bearer ${$("key").value}`} : more;

const post = (path, body, signal) => fetch(base + path, {method: "POST", signal, headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(body)});

// The data of server-sent events, however they are cut on the way.
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    rest += value || "";
    const lines = rest.split(/\r?\n/);
    rest = done ? "" : lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    if (done) return;
  }
}

async function refuse(answer) {
  const text = (await answer.text()).replace(/^data: /, ""); // a stream tells it as an event
  let e = {message: text || t("error {n}", {n: answer.status})};
  try {
    const body = JSON.parse(text).error;
    e = typeof body === "string" ? {message: body} : body || e;
  } catch { /* it is plain text */ }
  throw Object.assign(new Error(e.message), {status: answer.status, param: e.param, code: e.code});
}

// Yields {text}, {reasoning}, {call: {index, id, name, arguments}}, {usage}, {finish}.
async function* openai(path, body, signal) {
  const answer = await post(path, {...body, stream: true, stream_options: {include_usage: true}}, signal);
  if (!answer.ok) await refuse(answer);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const o = JSON.parse(data);
    if (o.error) throw new Error(o.error.message);
    if (o.usage) yield {usage: o.usage};
    const c = (o.choices || [])[0];
    if (!c) continue;
    const delta = c.delta || {content: c.text};
    if (delta.reasoning_content) yield {reasoning: delta.reasoning_content};
    if (delta.content) yield {text: delta.content};
    for (const call of delta.tool_calls || []) {
      const f = call.function || {};
      yield {call: {index: call.index || 0, id: call.id || "", name: f.name || "", arguments: f.arguments || ""}};
    }
    if (c.finish_reason) yield {finish: c.finish_reason};
  }
}

async function* generate(model, text, params, signal, stream = true) {
  const s = {...general};
  for (const f of Object.keys(s)) if (params[f] !== undefined) s[f] = params[f];
  const seed = params.seed ?? Math.floor(Math.random() * 2 ** 32); // under both names that repositories have for it
  const body = {text_input: text, stream, max_tokens: params.max_tokens || plainTokens, bad_words: "", stop_words: "",
    exclude_input_in_output: true, repetition_penalty: s.repetition_penalty, top_k: s.top_k,
    random_seed: seed, seed};
  if (s.temperature > 0) Object.assign(body, {temperature: s.temperature, top_p: s.top_p, min_p: s.min_p}); // top_p: it is drawn
  else body.top_k = 1;
  const answer = await post(`v2/models/${encodeURIComponent(model)}/generate_stream`, body, signal);
  if (!answer.ok) {
    try {
      await refuse(answer);
    } catch (e) {
      if (!stream || !/decoupled/.test(e.message)) throw e;
      yield* generate(model, text, params, signal, false); // this model answers in one piece
      return;
    }
  }
  for await (const data of events(answer.body)) {
    const o = JSON.parse(data);
    if (o.error) throw new Error(o.error);
    if (o.text_output) yield {text: o.text_output};
  }
}

// The stream of an answer: chat where the model can, else its text continued, which yields {continued} first.
// more: the last message is the beginning of the answer.
export async function* ask({model, messages, params, chat, more}, signal) {
  const {system, ...fields} = params;
  const textOf = ({content}) => typeof content === "string" ? content : content.map((part) => part.text || "").join(""); // pictures need a chat
  const text = more && messages.length > 1 ? textOf(messages.at(-2)) + textOf(messages.at(-1)) : textOf(messages.at(-1));
  const plain = () => {
    const {tools, chat_template_kwargs, reasoning_effort, ...rest} = fields; // those of chats
    return openai("v1/completions", {model, prompt: text, max_tokens: plainTokens, ...rest}, signal);
  };
  if (!chat) {
    yield {continued: t("text continued")};
    return yield* generate(model, text, fields, signal);
  }
  if (!plainModels.has(model)) {
    let begun = false;
    try {
      const list = system ? [{role: "system", content: system}, ...messages] : messages;
      const go = more ? {continue_final_message: true, add_generation_prompt: false} : {};
      for await (const e of openai("v1/chat/completions", {model, messages: list, ...fields, ...go}, signal)) {
        begun = true;
        yield e;
      }
      return;
    } catch (e) {
      const noTemplate = e.status === 400 && e.param === "messages" && /template/.test(e.message);
      if (!noTemplate || begun) throw e;
      plainModels.add(model);
    }
  }
  yield {continued: t("no chat template: text continued")};
  yield* plain();
}

// What can be talked to: [{id, sampling, ...}]. Throws with status 401 where a key is missing.
export async function listModels(chat, ready) {
  if (chat) {
    const answer = await fetch(`${base}v1/models`, {headers: headers()});
    if (answer.status === 401) await refuse(answer);
    return answer.ok ? (await answer.json()).data : [];
  }
  const list = []; // without /v1: the models that take text
  for (const id of ready) {
    const answer = await fetch(`${base}v2/models/${encodeURIComponent(id)}`, {headers: headers()});
    const m = answer.ok ? await answer.json() : {};
    if ((m.inputs || []).some((i) => i.name === "text_input")) list.push({id});
  }
  return list;
}

// Lines of a pull: {status, total, completed}. Throws what the server says.
export async function* pullModel(model, signal) {
  const answer = await post("api/pull", {model}, signal);
  if (!answer.ok) await refuse(answer);
  let rest = "";
  for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const {value, done} = await reader.read();
    const lines = (rest + (value || "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) {
      const o = JSON.parse(line);
      if (o.error) throw new Error(o.error);
      yield o;
    }
    if (done) return;
  }
}

export async function deleteModel(model) {
  const answer = await fetch(`${base}api/delete`, {method: "DELETE", headers: headers({"Content-Type": "application/json"}), body: JSON.stringify({model})});
  if (!answer.ok) await refuse(answer);
}

// verb: load or unload, of a server with several models. Throws what the server says.
export async function orderModel(verb, model) {
  const answer = await post(`models/${verb}`, {model});
  if (!answer.ok) await refuse(answer);
}
