#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers bound by a schema with long keys, one after the other, from a running server.

  guided_keys.py --port 8000 [--model ensemble] [--answers 8] [--logprobs]

Prints answers' tokens, time, and how many tokens the tokenizer itself makes of them. With --logprobs nothing
is jumped over, since every token's log probability is wanted: the difference is the gain."""
import argparse
import http.client
import json
import time

PROPERTIES = {
    "customer_identification_number": {"type": "integer"},
    "preferred_communication_language": {"enum": ["english", "french", "german"]},
    "has_accepted_terms_and_conditions": {"type": "boolean"},
    "estimated_delivery_time_in_days": {"type": "integer", "minimum": 1, "maximum": 30},
    "shipping_address_postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
    "requires_signature_on_delivery": {"type": "boolean"},
    "total_order_value_in_euro_cents": {"type": "integer"},
    "payment_method_description": {"enum": ["credit card", "bank transfer", "cash on delivery"]}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES), "additionalProperties": False}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--model", default="ensemble")
    p.add_argument("--answers", type=int, default=8)
    p.add_argument("--logprobs", action="store_true")
    args = p.parse_args()
    conn = http.client.HTTPConnection("127.0.0.1", args.port, timeout=300)

    def post(path, body):
        conn.request("POST", path, json.dumps(dict(body, model=args.model)))
        r = conn.getresponse()
        text = r.read()
        assert r.status == 200, text
        return json.loads(text)

    def ask(seed):
        body = {"prompt": "Invent an order as JSON:\n", "max_tokens": 400, "temperature": 0.7, "seed": seed,
                "guided_json": SCHEMA}
        return post("/v1/completions", dict(body, logprobs=1) if args.logprobs else body)

    ask(0)  # opens the tokenizer, compiles the schema
    n_tokens = n_own = seconds = 0
    for seed in range(args.answers):
        begin = time.perf_counter()
        r = ask(seed)
        seconds += time.perf_counter() - begin
        text = r["choices"][0]["text"]
        assert r["choices"][0]["finish_reason"] == "stop" and set(json.loads(text)) == set(PROPERTIES), text
        n_tokens += r["usage"]["completion_tokens"]
        n_own += post("/tokenize", {"prompt": text, "add_special_tokens": False})["count"]
    print(f"{args.answers} answers: {seconds / args.answers * 1e3:.0f} ms each, {n_tokens} tokens "
          f"({n_own} as the tokenizer cuts the text), {n_own / seconds:.1f} of those a second")


if __name__ == "__main__":
    main()
