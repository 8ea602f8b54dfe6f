"""What a request through the front door costs beyond the engine's own time."""
import http.client
import json
import statistics
import time

BOUND_MS = 5.0  # what is aimed at is 1 ms; machines that build at the same time get some room
N = 200


def compute_ms(server):
    """(mean time of tensorrt_llm's executions so far, their number)"""
    status, stats = server.request("/v2/models/tensorrt_llm/stats")
    assert status == 200
    s = stats["model_stats"][0]["inference_stats"]["compute_infer"]
    return s["ns"] / 1e6, s["count"]


def test_generate_adds_little_to_the_engines_time(server):
    c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
    body = json.dumps({"text_input": "hello world", "max_tokens": 1, "end_id": -1})
    walls = []
    for i in range(20 + N):
        if i == 20:
            before_ms, before_n = compute_ms(server)
        begin = time.perf_counter()
        c.request("POST", "/v2/models/ensemble/generate", body)
        r = c.getresponse()
        answer = json.loads(r.read())
        wall = (time.perf_counter() - begin) * 1e3
        assert r.status == 200 and "text_output" in answer
        if i >= 20:
            walls.append(wall)
    after_ms, after_n = compute_ms(server)
    assert after_n - before_n == N
    engine = (after_ms - before_ms) / N
    over = statistics.mean(walls) - engine
    print(f"request {statistics.mean(walls):.3f} ms (median {statistics.median(walls):.3f}), "
          f"engine {engine:.3f} ms, beyond it {over:.3f} ms")
    assert over < BOUND_MS
