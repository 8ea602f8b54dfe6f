#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server of /v1/chat/completions whose times are known, to compare those who measure: the first token of a streamed
answer comes FIRST ms after its request, each further one PACE ms after the one before, whatever else runs.

    paced.py [--port 8000] [--first 100] [--pace 20]

An answer has `max_tokens` (or max_completion_tokens) pieces of one sign, which is a token to byte-level tokenizers, and
`usage` behind them where stream_options ask for it."""
import argparse
import asyncio
import json

CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "paced"}


async def answer(writer, asked, args, due):
    n = asked.get("max_completion_tokens") or asked.get("max_tokens") or 16
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def event(data):
        text = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(text), text))
    clock = asyncio.get_running_loop().time
    for i in range(n):
        await asyncio.sleep(max(0, due + (args.first + i * args.pace) / 1000 - clock()))
        event({**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "~"},
                                     "finish_reason": "length" if i == n - 1 else None}]})
        await writer.drain()
    if (asked.get("stream_options") or {}).get("include_usage"):
        words = sum(len(str(m.get("content", "")).split()) for m in asked.get("messages", []))
        event({**CHUNK, "choices": [], "usage": {"prompt_tokens": words, "completion_tokens": n, "total_tokens": words + n}})
    event("[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def connection(reader, writer, args):
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            due = asyncio.get_running_loop().time()
            lines = head.decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if lines[0].startswith("POST "):
                await answer(writer, json.loads(body), args, due)
            else:
                text = json.dumps({"object": "list", "data": [{"id": "paced", "object": "model", "created": 1}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--first", type=float, default=100)
    parser.add_argument("--pace", type=float, default=20)
    args = parser.parse_args()
    server = await asyncio.start_server(lambda r, w: connection(r, w, args), "127.0.0.1", args.port, backlog=1024)
    async with server:
        await server.serve_forever()

asyncio.run(main())
