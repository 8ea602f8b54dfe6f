// SPDX-License-Identifier: Apache-2.0
// The openai package for JavaScript against a running server, as clients.py does it for Python's:
//
//   npm install openai && node clients.mjs http://localhost:8000 NAME
//
// Prints a row of that table; exits 1 when a check failed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const question = "Which colour has the sky?";
const ask = { model, messages: [{ role: "user", content: question }], max_tokens: 100 };
const zone = { type: "object", properties: { zone: { enum: ["UTC", "CET"] } }, required: ["zone"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "clock", description: "The time in a zone", parameters: zone } }];

function isCall(call) {
    assert.equal(call.function.name, "clock");
    assert.ok(["UTC", "CET"].includes(JSON.parse(call.function.arguments).zone));
}

const checks = {
    async chat() {
        const answer = await client.chat.completions.create(ask);
        assert.ok(["stop", "length"].includes(answer.choices[0].finish_reason) && answer.usage.completion_tokens <= 100);
    },
    async stream() {
        const chunks = [];
        for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
            chunks.push(chunk);
        }
        assert.ok(chunks.length > 2 && chunks.at(-1).usage.total_tokens > 0);
    },
    async "stream helper"() {
        const runner = client.chat.completions.stream(ask);
        const answer = await runner.finalChatCompletion();
        assert.equal(answer.choices[0].message.role, "assistant");
    },
    async tools() {
        const answer = await client.chat.completions.create({ ...ask, tools, tool_choice: "required" });
        isCall(answer.choices[0].message.tool_calls[0]);
    },
    async "streamed tools"() {
        const runner = client.chat.completions.stream({ ...ask, tools, tool_choice: "required" });
        isCall((await runner.finalMessage()).tool_calls[0]);
    },
    async structured() {
        const schema = { type: "object", properties: { colour: { enum: ["red", "blue"] } }, required: ["colour"], additionalProperties: false };
        const answer = await client.chat.completions.parse({
            ...ask, response_format: { type: "json_schema", json_schema: { name: "reply", strict: true, schema } } });
        assert.ok(["red", "blue"].includes(JSON.parse(answer.choices[0].message.content).colour));
    },
    async responses() {
        const events = [];
        for await (const event of await client.responses.create({ model, input: question, max_output_tokens: 16, stream: true })) {
            events.push(event.type);
        }
        assert.equal(events[0], "response.created");
        assert.ok(["response.completed", "response.incomplete"].includes(events.at(-1)));
        const answer = await client.responses.create({ model, input: question, max_output_tokens: 16 });
        assert.equal(typeof answer.output_text, "string");
    },
    async embeddings() { // asked for in base64, which the package unpacks
        const { data } = await client.embeddings.create({ model, input: ["one", "two"] });
        assert.ok(data.length === 2 && data[0].embedding.length > 1 && data[0].embedding.every(Number.isFinite));
    },
    async error() {
        await assert.rejects(client.chat.completions.create({ ...ask, temperature: 9 }),
            (e) => e instanceof OpenAI.BadRequestError && e.message.includes("temperature") && e.message.includes("0 to 2"));
    },
};

const good = [], bad = [];
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
        good.push(name);
    } catch (e) {
        bad.push(`${name}: ${e}`.slice(0, 300).replaceAll("\n", " "));
    }
}
const version = createRequire(import.meta.url)("openai/package.json").version;
console.log(`| \`openai\` (JavaScript) | ${version} | ${good.join(", ")} | ${bad.join("; ")} |`);
process.exit(bad.length ? 1 : 0);
