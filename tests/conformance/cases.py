# SPDX-License-Identifier: Apache-2.0
"""The model repository and the requests that both servers get.

A case is (name, method, path, body, headers). Names are stable: known_differences.md refers to
them. Cases run in this order on both servers, so that statistics can be compared at the end.
"""
import gzip
import json
import pathlib
import struct

TYPES = {"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
         "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d"}


def tensor(name, dtype, dims, extra=""):
    return f'{{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {extra} }}'


def config(name, ins, outs, max_batch=0, extra=""):
    return (f'name: "{name}"\nbackend: "identity"\nmax_batch_size: {max_batch}\n'
            f'input [ {", ".join(ins)} ]\noutput [ {", ".join(outs)} ]\n'
            f'instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{extra}\n')


def simple(name, dtype, dims="-1", **kwargs):
    return config(name, [tensor("INPUT0", dtype, dims)], [tensor("OUTPUT0", dtype, dims)], **kwargs)


ENSEMBLE = """name: "chain"
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "batched" model_version: -1
    input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "middle" } },
  { model_name: "labels" model_version: -1
    input_map { key: "INPUT0" value: "middle" } output_map { key: "OUTPUT0" value: "OUT" } }
] }
"""


def write_repository(folder):
    """Fills a folder with every model the cases use."""
    models = {
        "batched": simple("batched", "FP32", "4", max_batch=4,
                          extra="dynamic_batching { preferred_batch_size: [ 2, 4 ] "
                                "max_queue_delay_microseconds: 100 }"),
        "labels": config("labels", [tensor("INPUT0", "FP32", "4")],
                         [tensor("OUTPUT0", "FP32", "4", 'label_filename: "names.txt"')],
                         max_batch=4),
        "two": config("two",
                      [tensor("A", "INT32", "2"), tensor("B", "STRING", "-1", "optional: true")],
                      [tensor("X", "INT32", "2"), tensor("Y", "STRING", "-1")], max_batch=8),
        "chain": ENSEMBLE,
        "stream": simple("stream", "INT32",
                         extra="model_transaction_policy { decoupled: true }\n"
                               'parameters { key: "responses" value { string_value: "3" } }'),
        "one": simple("one", "INT32",
                      extra="model_transaction_policy { decoupled: true }"),
        "versions": simple("versions", "INT32", extra="version_policy { all {} }"),
        "text": simple("text", "STRING"),
        "reshaped": config("reshaped", [tensor("INPUT0", "INT32", "1", "reshape { shape: [] }")],
                           [tensor("OUTPUT0", "INT32", "1", "reshape { shape: [] }")],
                           max_batch=2),
        "matrix": simple("matrix", "INT32", "-1, 3"),
    }
    for dtype in [*TYPES, "FP16", "BF16"]:
        models[dtype.lower()] = simple(dtype.lower(), dtype)
    for name, text in models.items():
        for version in ("1", "3") if name == "versions" else ("1",):
            (pathlib.Path(folder) / name / version).mkdir(parents=True)
        (pathlib.Path(folder) / name / "config.pbtxt").write_text(text)
    (pathlib.Path(folder) / "labels" / "names.txt").write_text("ant\nbee\ncat\ndog\n")


# ---- bodies ----

def js(value):
    return json.dumps(value).encode()


def inp(data, dtype="INT32", shape=None, name="INPUT0", **more):
    shape = [len(data)] if shape is None else shape
    return {"name": name, "datatype": dtype, "shape": shape, "data": data, **more}


def ask(*inputs, **more):
    return js({"inputs": list(inputs), **more})


def raw_input(size, dtype="INT32", shape=(2,), name="INPUT0"):
    return {"name": name, "datatype": dtype, "shape": list(shape),
            "parameters": {"binary_data_size": size}}


def binary(header, tail, length=None):
    """Body and header fields of a request with binary tensors."""
    head = js(header)
    return head + tail, {"Inference-Header-Content-Length":
                         str(len(head) if length is None else length)}


def texts(*items):
    return b"".join(struct.pack("<I", len(i)) + i for i in items)


def cases():
    out = []

    def add(name, method, path, body=b"", fields=None):
        out.append((name, method, path, body, fields or {}))

    def infer(name, body, model="int32", fields=None, tail="infer"):
        add("infer/" + name, "POST", f"/v2/models/{model}/{tail}", body, fields)

    def infer_binary(name, header, tail, model="int32", length=None):
        body, fields = binary(header, tail, length)
        infer("binary/" + name, body, model, fields)

    questions(add)
    json_tensors(infer)
    binary_tensors(infer_binary)
    outputs(infer, infer_binary)
    wrong_tensors(infer, infer_binary)
    parameters(infer)
    generate(add)
    settings(add)
    shared_memory(add, infer)
    add("stats/all", "GET", "/v2/models/stats")
    for model in ("int32", "chain", "batched", "versions", "stream", "nosuch"):
        add(f"stats/{model}", "GET", f"/v2/models/{model}/stats")
    add("stats/version", "GET", "/v2/models/versions/versions/3/stats")
    add("stats/no version", "GET", "/v2/models/int32/versions/7/stats")
    return out


# NVIDIA's program ends with a segmentation fault or an exception; sent to ours alone.
END_THEIRS = {"infer/class/text", "infer/wrong/shape huge"}


# Refused here and carried out there (known_differences.md says why). They are sent after the
# statistics and metrics were compared, which would differ by them.
CARRIED_OUT_THERE = {
    *(f"infer/json/{t} over" for t in ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32")),
    "infer/json/not gzip", "infer/wrong/two missing", "generate/two missing",
    "generate_stream/two missing", "explicit/load twice"}


def questions(add):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2", "/v2/", "/", "/v2/models",
                 "/v2/models/stats", "/v1", "/v3", "/v2/health", "/v2/health/", "/v2/health/x",
                 "/v2/health/live/", "/metrics", "/v2/nothing", "/V2", "/v2?x=1", "//v2",
                 "/v2/health/ready?x", "/v2/models/", "/v2/models/int32/x", "/v2/repository",
                 "/v2/models/int32/versions", "/v2/models/int32/versions/1/x",
                 "/v2/models/int32/versions/1/versions/1", "/v2/models/int32/infer",
                 "/v2/models/int32/generate", "/v2/models/int32/generate_stream",
                 "/v2/repository/index", "/v2/logging", "/v2/trace/setting",
                 "/v2/models/int32/trace/setting", "/v2/models/int%3332", "/v2/%6dodels/int32"):
        add(f"get {path}", "GET", path)
    for model in ("int32", "chain", "batched", "labels", "two", "stream", "versions", "text",
                  "bf16", "reshaped", "nosuch", "a%20b"):
        for version in ("", "/versions/1", "/versions/3", "/versions/x", "/versions/-1",
                        "/versions/", "/versions/99999999999999999999", "/versions/0",
                        "/versions/1x"):
            if version and model not in ("int32", "versions", "nosuch"):
                continue
            for tail in ("", "/ready", "/config"):
                add(f"model/{model}{version}{tail}", "GET", f"/v2/models/{model}{version}{tail}")
    for method in ("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "POST"):
        for path in ("/v2", "/v2/health/live", "/v2/models/int32", "/v2/models/int32/ready",
                     "/v2/models/int32/config", "/v2/models/int32/stats", "/v2/models/stats",
                     "/v2/logging", "/v2/nothing"):
            if method != "POST" or path != "/v2/logging":
                add(f"method/{method} {path}", method, path, b"{}" if method == "POST" else b"")
    for method in ("PUT", "DELETE"):
        add(f"method/{method} infer", method, "/v2/models/int32/infer", ask(inp([1])))
        add(f"method/{method} generate", method, "/v2/models/int32/generate", b"{}")
        add(f"method/{method} index", method, "/v2/repository/index")
    add("index", "POST", "/v2/repository/index")
    add("index/ready", "POST", "/v2/repository/index", js({"ready": True}))
    add("index/not ready", "POST", "/v2/repository/index", js({"ready": False}))
    add("index/bad json", "POST", "/v2/repository/index", b"{")
    add("index/bad type", "POST", "/v2/repository/index", js({"ready": "yes"}))
    add("index/array", "POST", "/v2/repository/index", b"[]")
    add("index/of a repository", "POST", "/v2/repository/x/index")
    add("index/trailing", "POST", "/v2/repository/index/x")
    add("load/refused", "POST", "/v2/repository/models/int32/load")
    add("unload/refused", "POST", "/v2/repository/models/int32/unload")
    add("load/other", "POST", "/v2/repository/models/int32/reload")


def json_tensors(infer):
    limits = {"BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535],
              "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1], "INT8": [-128, 127],
              "INT16": [-2**15, 2**15 - 1], "INT32": [-2**31, 2**31 - 1],
              "INT64": [-2**63, 2**63 - 1], "FP32": [0.1, -3.25e-7], "FP64": [0.1, 1e300]}
    over = {"UINT8": [256], "INT8": [128], "UINT16": [65536], "INT16": [-32769],
            "UINT32": [2**32], "INT32": [2**31], "INT64": [2**63], "UINT64": [2**64],
            "FP32": [1e300]}
    for dtype, values in limits.items():
        infer(f"json/{dtype}", ask(inp(values, dtype)), dtype.lower())
        infer(f"json/{dtype} from text", ask(inp(["1"], dtype)), dtype.lower())
        infer(f"json/{dtype} from fraction", ask(inp([1.5], dtype)), dtype.lower())
        infer(f"json/{dtype} from integer", ask(inp([1], dtype)), dtype.lower())
        infer(f"json/{dtype} from negative", ask(inp([-1], dtype)), dtype.lower())
        infer(f"json/{dtype} from null", ask(inp([None], dtype)), dtype.lower())
        infer(f"json/{dtype} from bool", ask(inp([True], dtype)), dtype.lower())
    for dtype, values in over.items():
        infer(f"json/{dtype} over", ask(inp(values, dtype)), dtype.lower())
    for dtype in ("FP16", "BF16"):
        infer(f"json/{dtype}", ask(inp([1.5], dtype)), dtype.lower())
    infer("json/floats", ask(inp([1.0, 0.1, 1e-30, 3.4e38, 16777216, 1 / 3, -0.0, 1e20, 123456.789,
                                  1e7, 1.5e-5], "FP32")), "fp32")
    infer("json/doubles", ask(inp([1.0, 0.1, 1e-300, 1.7e308, 2**53, 1 / 3, -0.0, 5e-324, 1e21,
                                   1e20, 123456789.125, 1e-5, 1e-7], "FP64")), "fp64")
    infer("json/text", ask(inp(["", "a", "ü€😀", "q\"\\\n\t\u0001/"], "BYTES")), "text")
    infer("json/text escapes", b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],'
          b'"data":["\\u00fc\\ud83d\\ude00","\\/"]}]}', "text")
    infer("json/text from number", ask(inp([1], "BYTES")), "text")
    infer("json/text from lists", ask(inp([["a", "b"], ["c"]], "BYTES", [3])), "text")
    infer("json/nested", ask(inp([[1, 2, 3], [4, 5, 6]], shape=[2, 3])), "matrix")
    infer("json/nested flat", ask(inp([1, 2, 3, 4, 5, 6], shape=[2, 3])), "matrix")
    infer("json/nested odd", ask(inp([[1, 2], [3, 4], [5, 6]], shape=[2, 3])), "matrix")
    infer("json/deep", ask(inp([[[[1]]]], shape=[1])))
    infer("json/empty", ask(inp([], shape=[0])))
    infer("json/batch", ask(inp([1, 2, 3, 4, 5, 6, 7, 8], "FP32", [2, 4])), "batched")
    infer("json/ensemble", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN")), "chain")
    infer("json/two", ask(inp([1, 2], shape=[1, 2], name="A"),
                          inp(["x"], "BYTES", [1, 1], "B")), "two")
    infer("json/two swapped", ask(inp(["x"], "BYTES", [1, 1], "B"),
                                  inp([1, 2], shape=[1, 2], name="A")), "two")
    infer("json/optional left out", ask(inp([1, 2], shape=[1, 2], name="A")), "two")
    infer("json/reshape", ask(inp([1, 2], shape=[2, 1])), "reshaped")
    infer("json/version", ask(inp([1])), "versions", tail="versions/3/infer")
    infer("json/version latest", ask(inp([1])), "versions")
    infer("json/version unknown", ask(inp([1])), "versions", tail="versions/7/infer")
    infer("json/version bad", ask(inp([1])), "versions", tail="versions/x/infer")
    infer("json/unknown model", ask(inp([1])), "nosuch")
    infer("json/decoupled", ask(inp([1])), "stream")
    infer("json/content type", ask(inp([1])), fields={"Content-Type": "text/plain"})
    infer("json/many", ask(inp(list(range(5000)))))
    infer("json/gzip", gzip.compress(ask(inp([1]))), fields={"Content-Encoding": "gzip"})
    infer("json/not gzip", ask(inp([1])), fields={"Content-Encoding": "gzip"})
    infer("json/unknown encoding", ask(inp([1])), fields={"Content-Encoding": "br"})
    infer("json/accept unknown", ask(inp([1])), fields={"Accept-Encoding": "br"})


def binary_tensors(infer):
    two = struct.pack("<2i", 5, -6)
    infer("in", {"inputs": [raw_input(8)]}, two)
    infer("in short", {"inputs": [raw_input(8)]}, two[:5])
    infer("in long", {"inputs": [raw_input(8)]}, two + b"xx")
    infer("size small", {"inputs": [raw_input(4)]}, two)
    infer("size big", {"inputs": [raw_input(12)]}, two + b"1234")
    infer("size zero", {"inputs": [raw_input(0, shape=[0])]}, b"")
    infer("size text", {"inputs": [raw_input("8")]}, two)
    infer("size negative", {"inputs": [raw_input(-8)]}, two)
    infer("size and data", {"inputs": [{**raw_input(8), "data": [1, 2]}]}, two)
    infer("header 0", {"inputs": [raw_input(8)]}, two, length=0)
    infer("header short", {"inputs": [raw_input(8)]}, two, length=10)
    infer("header long", {"inputs": [raw_input(8)]}, two, length=100000)
    infer("header text", {"inputs": [raw_input(8)]}, two, length="abc")
    infer("header negative", {"inputs": [raw_input(8)]}, two, length=-1)
    infer("header empty", {"inputs": [raw_input(8)]}, two, length="")
    infer("header huge", {"inputs": [raw_input(8)]}, two, length=2**70)
    infer("header trailing", {"inputs": [raw_input(8)]}, two, length="78x")
    infer("json with header", {"inputs": [inp([1, 2])]}, b"")
    infer("json with header and tail", {"inputs": [inp([1, 2])]}, b"abcd")
    infer("mixed", {"inputs": [inp([1, 2], shape=[1, 2], name="A"),
                               raw_input(5, "BYTES", [1, 1], "B")]}, texts(b"x"), "two")
    infer("mixed other", {"inputs": [raw_input(8, shape=[1, 2], name="A"),
                                     inp(["y"], "BYTES", [1, 1], "B")]}, two, "two")
    infer("both", {"inputs": [raw_input(8, shape=[1, 2], name="A"),
                              raw_input(5, "BYTES", [1, 1], "B")]}, two + texts(b"x"), "two")
    infer("bytes", {"inputs": [raw_input(13, "BYTES", [2])]}, texts(b"ab", b"\xff\x00\xfe"),
          "text")
    infer("bytes as json", {"inputs": [raw_input(10, "BYTES", [2])],
                            "outputs": [{"name": "OUTPUT0"}]}, texts(b"ab", b""), "text")
    infer("bytes not utf8", {"inputs": [raw_input(6, "BYTES", [1])]}, texts(b"\xff\xfe"), "text")
    infer("bytes with zero", {"inputs": [raw_input(7, "BYTES", [1])]}, texts(b"a\0b"), "text")
    infer("bytes few", {"inputs": [raw_input(5, "BYTES", [2])]}, texts(b"x"), "text")
    infer("bytes many", {"inputs": [raw_input(10, "BYTES", [1])]}, texts(b"x", b"y"), "text")
    infer("bytes cut", {"inputs": [raw_input(6, "BYTES", [1])]}, b"\x09\0\0\0ab", "text")
    infer("bytes stub", {"inputs": [raw_input(2, "BYTES", [1])]}, b"\x09\0", "text")
    for dtype in ("FP16", "BF16"):
        infer(dtype, {"inputs": [raw_input(4, dtype)],
                      "parameters": {"binary_data_output": True}}, b"\0\x3c\0\x3e", dtype.lower())
        infer(dtype + " out json", {"inputs": [raw_input(4, dtype)]}, b"\0\x3c\0\x3e",
              dtype.lower())
    infer("bool odd", {"inputs": [raw_input(2, "BOOL")]}, b"\2\1", "bool")
    infer("nan", {"inputs": [raw_input(12, "FP32", [3])]},
          struct.pack("<3f", float("nan"), float("inf"), float("-inf")), "fp32")
    for dtype, code in TYPES.items():
        data = struct.pack("<2" + code, 1, 0)
        infer("all " + dtype, {"inputs": [raw_input(len(data), dtype)],
                               "outputs": [{"name": "OUTPUT0",
                                            "parameters": {"binary_data": True}}]},
              data, dtype.lower())


def outputs(infer, infer_binary):
    one = inp([1, 2])
    pair = (inp([1, 2], shape=[1, 2], name="A"), inp(["x"], "BYTES", [1, 1], "B"))
    want = {"name": "OUTPUT0"}
    yes, no = {"parameters": {"binary_data": True}}, {"parameters": {"binary_data": False}}
    infer("out/named", ask(one, outputs=[want]))
    infer("out/none", ask(one, outputs=[]))
    infer("out/unknown", ask(one, outputs=[{"name": "NOSUCH"}]))
    infer("out/no name", ask(one, outputs=[{}]))
    infer("out/name number", ask(one, outputs=[{"name": 7}]))
    infer("out/not a list", ask(one, outputs={"name": "OUTPUT0"}))
    infer("out/not objects", ask(one, outputs=["OUTPUT0"]))
    infer("out/null", ask(one, outputs=None))
    infer("out/binary", ask(one, outputs=[{**want, **yes}]))
    infer("out/not binary", ask(one, outputs=[{**want, **no}]))
    infer("out/binary number", ask(one, outputs=[{**want, "parameters": {"binary_data": 1}}]))
    infer("out/binary all", ask(one, parameters={"binary_data_output": True}))
    infer("out/binary all number", ask(one, parameters={"binary_data_output": 1}))
    infer("out/binary all but one", ask(one, parameters={"binary_data_output": True},
                                        outputs=[{**want, **no}]))
    infer("out/unknown parameter", ask(one, outputs=[{**want, "parameters": {"x": 1}}]))
    infer("out/some", ask(*pair, outputs=[{"name": "Y"}]), "two")
    infer("out/order", ask(*pair, outputs=[{"name": "Y"}, {"name": "X"}]), "two")
    infer("out/mixed", ask(*pair, outputs=[{"name": "X", **yes}, {"name": "Y"}]), "two")
    infer("out/mixed other", ask(*pair, outputs=[{"name": "X"}, {"name": "Y", **yes}]), "two")
    infer("out/ensemble binary", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN"),
                                     outputs=[{"name": "OUT", **yes}]), "chain")
    infer("out/ensemble unknown", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN"),
                                      outputs=[{"name": "middle"}]), "chain")
    infer("out/gzip", ask(one), fields={"Accept-Encoding": "gzip"})
    infer("out/deflate", ask(one), fields={"Accept-Encoding": "deflate"})
    infer_binary("out binary too", {"inputs": [raw_input(8)], "outputs": [{**want, **yes}]},
                 struct.pack("<2i", 5, 6))
    values = inp([0.1, 3, 2, 0.5, 9, 8, 7, 6], "FP32", [2, 4])
    for count in (0, 1, 2, 4, 9, -1, "2", 1.5, True):
        infer(f"class/{count}", ask(values, outputs=[{
            **want, "parameters": {"classification": count}}]), "labels")
    infer("class/binary", ask(values, outputs=[{
        **want, "parameters": {"classification": 2, "binary_data": True}}]), "labels")
    infer("class/no labels", ask(values, outputs=[{
        **want, "parameters": {"classification": 3}}]), "batched")
    infer("class/int", ask(inp([3, 5, 1]), outputs=[{
        **want, "parameters": {"classification": 3}}]))
    infer("class/text", ask(inp(["a"], "BYTES"), outputs=[{
        **want, "parameters": {"classification": 1}}]), "text")
    infer("class/ensemble", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN"), outputs=[{
        "name": "OUT", "parameters": {"classification": 2}}]), "chain")


def wrong_tensors(infer, infer_binary):
    good = inp([1, 2])
    without = lambda key: {k: v for k, v in good.items() if k != key}
    for name, body in {
            "empty body": b"", "no json": b"hello", "open brace": b"{", "array": b"[]",
            "number": b"1", "null": b"null", "empty object": b"{}", "two values": b"{} {}",
            "text": b'"x"', "comma": b'{"inputs":[1,]}', "not utf8": b'{"id":"\xff"}',
            "control": b'{"id":"a\nb"}', "nan": b'{"inputs":NaN}', "quotes": b"{'inputs':[]}",
            "no close": b'{"inputs":[', "no colon": b'{"inputs" 1}', "bad escape": b'{"a":"\\x"}',
            "bad surrogate": b'{"id":"\\ud800"}', "bad number": b'{"a":01}', "plus": b'{"a":+1}',
            "exponent": b'{"a":1e}', "huge number": b'{"a":1e999}', "no key": b"{1:2}",
            "true": b'{"a":tru}', "open string": b'{"a":"b', "bad hex": b'{"a":"\\u12g4"}',
            "no comma": b'{"a":1 "b":2}', "list no comma": b'{"a":[1 2]}', "zeros": b"\0\0\0",
            "space": b"  ", "bom": b"\xef\xbb\xbf{}", "comment": b"/**/{}",
            "no inputs": ask(), "inputs null": js({"inputs": None}),
            "inputs object": js({"inputs": {}}), "inputs numbers": js({"inputs": [1]}),
            "inputs text": js({"inputs": "x"}), "inputs list": js({"inputs": [[]]}),
            "no name": ask(without("name")), "no datatype": ask(without("datatype")),
            "no shape": ask(without("shape")), "no data": ask(without("data")),
            "name number": ask({**good, "name": 1}), "name empty": ask({**good, "name": ""}),
            "name wrong": ask({**good, "name": "NOSUCH"}),
            "name twice": ask(good, good), "name extra": ask(good, {**good, "name": "MORE"}),
            "datatype number": ask({**good, "datatype": 1}),
            "datatype unknown": ask({**good, "datatype": "INT33"}),
            "datatype case": ask({**good, "datatype": "int32"}),
            "datatype other": ask({**good, "datatype": "INT64"}),
            "datatype same size": ask({**good, "datatype": "UINT32"}),
            "shape text": ask({**good, "shape": "2"}), "shape empty": ask({**good, "shape": []}),
            "shape words": ask({**good, "shape": ["2"]}),
            "shape fraction": ask({**good, "shape": [2.0]}),
            "shape negative": ask({**good, "shape": [-2]}),
            "shape -1": ask({**good, "shape": [-1]}),
            "shape small": ask({**good, "shape": [1]}), "shape big": ask({**good, "shape": [3]}),
            "shape rank": ask({**good, "shape": [1, 2]}),
            "shape huge": ask({**good, "shape": [2**62]}),
            "shape over": ask({**good, "shape": [2**32, 2**32]}),
            "shape beyond": ask({**good, "shape": [2**64]}),
            "shape null": ask({**good, "shape": None}), "shape number": ask({**good, "shape": 2}),
            "data text": ask({**good, "data": "12"}), "data number": ask({**good, "data": 1}),
            "data object": ask({**good, "data": {}}), "data null": ask({**good, "data": None}),
            "data mixed": ask({**good, "data": [1, "a"]}),
            "data objects": ask({**good, "data": [{}, {}]}),
            "data deep": ask({**good, "data": [[1], 2]}),
            "data ragged": ask({**good, "data": [[1, 2], []]}),
            "unknown key": ask({**good, "more": 1}), "unknown top key": ask(good, more=1),
            "input parameters": ask({**good, "parameters": {"x": 1}}),
            "input parameters list": ask({**good, "parameters": []}),
            "input parameters text": ask({**good, "parameters": "x"})}.items():
        infer("wrong/" + name, body)
    row = [1, 2, 3, 4]
    infer("wrong/batch missing", ask(inp(row, "FP32")), "batched")
    infer("wrong/batch zero", ask(inp([], "FP32", [0, 4])), "batched")
    infer("wrong/batch big", ask(inp(row * 5, "FP32", [5, 4])), "batched")
    infer("wrong/batch dims", ask(inp(row * 2, "FP32", [1, 8])), "batched")
    infer("wrong/batch rank", ask(inp(row, "FP32", [1, 1, 4])), "batched")
    infer("wrong/batch negative", ask(inp(row, "FP32", [-1, 4])), "batched")
    infer("wrong/matrix dims", ask(inp(row, shape=[2, 2])), "matrix")
    infer("wrong/two missing", ask(inp(["x"], "BYTES", [1, 1], "B")), "two")
    infer("wrong/two batches", ask(inp([1, 2], shape=[1, 2], name="A"),
                                   inp(["x", "y"], "BYTES", [2, 1], "B")), "two")
    infer("wrong/two many", ask(inp([1, 2], shape=[1, 2], name="A"),
                                inp(["x"], "BYTES", [1, 1], "B"), inp([1], name="C")), "two")
    infer("wrong/text bad count", ask(inp(["x"], "BYTES", [2])), "text")
    infer("wrong/chain name", ask(inp(row, "FP32", [1, 4])), "chain")
    infer("wrong/chain type", ask(inp(row, "INT32", [1, 4], "IN")), "chain")
    infer("wrong/chain dims", ask(inp(row, "FP32", [2, 2], "IN")), "chain")
    infer("wrong/chain batch", ask(inp(row * 5, "FP32", [5, 4], "IN")), "chain")
    infer("wrong/reshape", ask(inp([1, 2], shape=[1, 2])), "reshaped")
    infer_binary("wrong type", {"inputs": [raw_input(8, "INT64", [1])]}, bytes(8))
    infer_binary("wrong shape", {"inputs": [raw_input(8, shape=[4])]}, bytes(8))
    infer_binary("no inputs", {"inputs": []}, bytes(8))
    infer_binary("batch big", {"inputs": [raw_input(80, "FP32", [5, 4])]}, bytes(80), "batched")


def parameters(infer):
    one = inp([1, 2])
    for name, value in {
            "text": {"x": "y"}, "number": {"x": 1}, "bool": {"x": True}, "fraction": {"x": 1.5},
            "null": {"x": None}, "list": {"x": [1]}, "object": {"x": {}}, "empty": {},
            "not object": [], "words": "x", "big": {"x": 2**64}, "negative": {"x": -5},
            "priority": {"priority": 1}, "priority negative": {"priority": -1},
            "priority text": {"priority": "x"}, "timeout": {"timeout": 1000000},
            "timeout text": {"timeout": "x"}, "timeout zero": {"timeout": 0},
            "sequence": {"sequence_id": 5, "sequence_start": True, "sequence_end": True},
            "sequence text": {"sequence_id": "abc"},
            "sequence start only": {"sequence_start": True},
            "sequence bool": {"sequence_id": True},
            "sequence start text": {"sequence_id": 1, "sequence_start": "yes"},
            "triton": {"triton_enable_empty_final_response": True},
            "headers": {"header_x": "y"}}.items():
        infer("parameters/" + name, ask(one, parameters=value))
    for name, value in {"text": "abc", "empty": "", "number": 5, "null": None, "list": [],
                        "unicode": "ü€", "quotes": "\"\\\n", "long": "x" * 300}.items():
        infer("id/" + name, ask(one, id=value))
    infer("id/ensemble", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN"), id="abc"), "chain")
    infer("parameters/ensemble", ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN"),
                                     parameters={"x": 1}), "chain")


def generate(add):
    def gen(name, body, model="int32", tail="generate", fields=None):
        add(f"{tail}/{name}", "POST", f"/v2/models/{model}/{tail}",
            body if isinstance(body, bytes) else js(body), fields)

    for tail in ("generate", "generate_stream"):
        gen("one", {"INPUT0": 7}, tail=tail)
        gen("list", {"INPUT0": [7, 8]}, tail=tail)
        gen("nested", {"INPUT0": [[7], [8]]}, tail=tail)
        gen("id", {"INPUT0": 7, "id": "abc"}, tail=tail)
        gen("id number", {"INPUT0": 7, "id": 5}, tail=tail)
        gen("id empty", {"INPUT0": 7, "id": ""}, tail=tail)
        gen("parameters", {"INPUT0": 7, "parameters": {"a": 1, "b": "x", "c": True}}, tail=tail)
        gen("parameters bad", {"INPUT0": 7, "parameters": 5}, tail=tail)
        gen("parameters nested", {"INPUT0": 7, "parameters": {"a": {"b": 1}}}, tail=tail)
        gen("other keys", {"INPUT0": 7, "x": 1, "y": "t", "z": 1.5, "w": False}, tail=tail)
        gen("other object", {"INPUT0": 7, "x": {}}, tail=tail)
        gen("other list", {"INPUT0": 7, "x": [1]}, tail=tail)
        gen("other null", {"INPUT0": 7, "x": None}, tail=tail)
        gen("input text", {"INPUT0": "7"}, tail=tail)
        gen("input fraction", {"INPUT0": 7.5}, tail=tail)
        gen("input bool", {"INPUT0": True}, tail=tail)
        gen("input null", {"INPUT0": None}, tail=tail)
        gen("input object", {"INPUT0": {"a": 1}}, tail=tail)
        gen("input empty", {"INPUT0": []}, tail=tail)
        gen("input mixed", {"INPUT0": [1, "a"]}, tail=tail)
        gen("missing", {}, tail=tail)
        gen("missing but others", {"x": 1}, tail=tail)
        gen("bad json", b"{", tail=tail)
        gen("empty body", b"", tail=tail)
        gen("array", b"[]", tail=tail)
        gen("text", {"INPUT0": "hello \"ü\""}, "text", tail)
        gen("texts", {"INPUT0": ["a", "b"]}, "text", tail)
        gen("text number", {"INPUT0": 5}, "text", tail)
        gen("text empty", {"INPUT0": ""}, "text", tail)
        gen("batched", {"INPUT0": [1, 2, 3, 4]}, "batched", tail)
        gen("batched two", {"INPUT0": [1, 2, 3, 4, 5, 6, 7, 8]}, "batched", tail)
        gen("batched odd", {"INPUT0": [1, 2, 3]}, "batched", tail)
        gen("batched float", {"INPUT0": [0.1, 1e-9, 1e20, 3]}, "batched", tail)
        gen("matrix", {"INPUT0": [1, 2, 3]}, "matrix", tail)
        gen("matrix odd", {"INPUT0": [1, 2]}, "matrix", tail)
        gen("ensemble", {"IN": [1, 2, 3, 4]}, "chain", tail)
        gen("ensemble id", {"IN": [1, 2, 3, 4], "id": "e", "stream": True}, "chain", tail)
        gen("two", {"A": [1, 2], "B": "x"}, "two", tail)
        gen("two optional", {"A": [1, 2]}, "two", tail)
        gen("two missing", {"B": "x"}, "two", tail)
        gen("stream", {"INPUT0": 7}, "stream", tail)
        gen("stream of one", {"INPUT0": 7}, "one", tail)
        gen("bool", {"INPUT0": True}, "bool", tail)
        gen("half", {"INPUT0": 1.5}, "fp16", tail)
        gen("unknown model", {"INPUT0": 7}, "nosuch", tail)
        gen("version", {"INPUT0": 7}, "versions/versions/3", tail)
        gen("version unknown", {"INPUT0": 7}, "versions/versions/9", tail)
        gen("reshape", {"INPUT0": 7}, "reshaped", tail)
        gen("gzip asked", {"INPUT0": 7}, tail=tail, fields={"Accept-Encoding": "gzip"})


def settings(add):
    def log(name, body):
        add("logging/" + name, "POST", "/v2/logging", body)

    log("empty", b"{}")
    log("nothing", b"")
    log("bad json", b"{")
    log("array", b"[]")
    log("unknown", js({"x": 1}))
    log("level", js({"log_verbose_level": 1}))
    log("level back", js({"log_verbose_level": 0}))
    log("level text", js({"log_verbose_level": "1"}))
    log("level negative", js({"log_verbose_level": -1}))
    log("level bool", js({"log_verbose_level": True}))
    log("info text", js({"log_info": "x"}))
    log("info", js({"log_info": True}))
    log("warning", js({"log_warning": False}))
    log("warning back", js({"log_warning": True}))
    log("error number", js({"log_error": 1}))
    log("file", js({"log_file": "/tmp/nowhere.log"}))
    log("file number", js({"log_file": 1}))
    log("format", js({"log_format": "ISO8601"}))
    log("format back", js({"log_format": "default"}))
    log("format bad", js({"log_format": "x"}))
    log("format number", js({"log_format": 1}))
    log("two, one bad", js({"log_info": True, "log_format": "x"}))
    add("logging/get", "GET", "/v2/logging")
    for where, path in (("trace", "/v2/trace/setting"),
                        ("trace of model", "/v2/models/int32/trace/setting")):
        for name, body in {
                "empty": b"{}", "nothing": b"", "bad json": b"{", "array": b"[]",
                "unknown": js({"x": 1}), "level": js({"trace_level": ["TIMESTAMPS"]}),
                "level bad": js({"trace_level": ["X"]}), "level text": js({"trace_level": "OFF"}),
                "rate": js({"trace_rate": "100"}), "rate number": js({"trace_rate": 100}),
                "rate bad": js({"trace_rate": "x"}), "rate negative": js({"trace_rate": "-1"}),
                "rate huge": js({"trace_rate": "99999999999999"}),
                "count": js({"trace_count": "5"}), "count bad": js({"trace_count": "x"}),
                "count -2": js({"trace_count": "-2"}), "frequency": js({"log_frequency": "3"}),
                "frequency bad": js({"log_frequency": "x"}),
                "file": js({"trace_file": "/tmp/x"}), "mode": js({"trace_mode": "triton"}),
                "clear rate": js({"trace_rate": None}), "clear level": js({"trace_level": None}),
                "clear count": js({"trace_count": None}),
                "clear frequency": js({"log_frequency": None}),
                "level off": js({"trace_level": ["OFF"]})}.items():
            add(f"{where}/{name}", "POST", path, body)
        add(f"{where}/get", "GET", path)
    add("trace of nothing", "GET", "/v2/models/nosuch/trace/setting")
    add("trace of nothing set", "POST", "/v2/models/nosuch/trace/setting", b"{}")


def shared_memory(add, infer):
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        base = f"/v2/{kind}"
        add(f"{kind}/status", "GET", base + "/status")
        add(f"{kind}/region status", "GET", base + "/region/none/status")
        add(f"{kind}/unregister all", "POST", base + "/unregister")
        add(f"{kind}/unregister none", "POST", base + "/region/none/unregister")
        add(f"{kind}/register without name", "POST", base + "/register", b"{}")
        add(f"{kind}/register empty", "POST", base + "/region/r/register", b"{}")
        add(f"{kind}/register bad json", "POST", base + "/region/r/register", b"{")
        add(f"{kind}/wrong method", "GET", base + "/region/r/register")
        add(f"{kind}/unknown", "POST", base + "/region/r/x")
        add(f"{kind}/nothing", "GET", base)
    add("systemsharedmemory/register missing file", "POST",
        "/v2/systemsharedmemory/region/r/register",
        js({"key": "/no_such_key_here", "offset": 0, "byte_size": 16}))
    add("systemsharedmemory/register bad size", "POST",
        "/v2/systemsharedmemory/region/r/register",
        js({"key": "/no_such_key_here", "offset": 0, "byte_size": "x"}))
    add("cudasharedmemory/register bad handle", "POST", "/v2/cudasharedmemory/region/r/register",
        js({"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 16}))
    region = {"shared_memory_region": "none", "shared_memory_byte_size": 8}
    infer("shm/in", ask({"name": "INPUT0", "datatype": "INT32", "shape": [2],
                         "parameters": region}))
    infer("shm/in no size", ask({"name": "INPUT0", "datatype": "INT32", "shape": [2],
                                 "parameters": {"shared_memory_region": "none"}}))
    infer("shm/out", ask(inp([1, 2]), outputs=[{"name": "OUTPUT0", "parameters": region}]))


def explicit_cases():
    """Requests for servers in explicit mode that started with no model."""
    out = []

    def add(name, method, path, body=b""):
        out.append(("explicit/" + name, method, path, body, {}))

    def load(name, model, body=b""):
        add("load " + name, "POST", f"/v2/repository/models/{model}/load", body)

    def unload(name, model, body=b""):
        add("unload " + name, "POST", f"/v2/repository/models/{model}/unload", body)

    index = lambda name: add("index " + name, "POST", "/v2/repository/index")
    add("ready without models", "GET", "/v2/health/ready")
    index("at first")
    add("infer unloaded", "POST", "/v2/models/int32/infer", ask(inp([1])))
    add("metadata unloaded", "GET", "/v2/models/int32")
    add("config unloaded", "GET", "/v2/models/int32/config")
    add("stats unloaded", "GET", "/v2/models/int32/stats")
    add("ready unloaded", "GET", "/v2/models/int32/ready")
    load("int32", "int32")
    load("int32 again", "int32")
    add("infer", "POST", "/v2/models/int32/infer", ask(inp([1])))
    index("one model")
    load("unknown", "nosuch")
    index("after unknown")
    load("bad json", "int32", b"{")
    load("array", "int32", b"[]")
    load("empty object", "int32", b"{}")
    load("parameters bad", "int32", js({"parameters": 5}))
    load("parameter unknown", "int32", js({"parameters": {"x": 1}}))
    load("parameter number", "int32", js({"parameters": {"config": 1}}))
    load("config bad", "int32", js({"parameters": {"config": "{"}}))
    load("config unknown field", "int32", js({"parameters": {"config": '{"nope": 1}'}}))
    load("config", "int32", js({"parameters": {"config": json.dumps({
        "backend": "identity",
        "input": [{"name": "I", "data_type": "TYPE_INT32", "dims": [2]}],
        "output": [{"name": "O", "data_type": "TYPE_INT32", "dims": [2]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}]})}}))
    add("metadata after config", "GET", "/v2/models/int32")
    add("config after config", "GET", "/v2/models/int32/config")
    load("file without config", "int32", js({"parameters": {"file:1/x": "AAAA"}}))
    load("plain again", "int32")
    add("metadata after plain", "GET", "/v2/models/int32")
    load("ensemble", "chain")
    index("ensemble")
    load("versions", "versions")
    unload("step of ensemble", "labels")
    index("without step")
    add("infer without step", "POST", "/v2/models/chain/infer",
        ask(inp([1, 2, 3, 4], "FP32", [1, 4], "IN")))
    load("step again", "labels")
    unload("ensemble and steps", "chain", js({"parameters": {"unload_dependents": True}}))
    index("without ensemble")
    unload("dependents number", "int32", js({"parameters": {"unload_dependents": 1}}))
    unload("bad json", "int32", b"{")
    unload("int32", "int32")
    unload("int32 again", "int32")
    unload("unknown", "nosuch")
    add("infer after unload", "POST", "/v2/models/int32/infer", ask(inp([1])))
    index("at last")
    add("index ready", "POST", "/v2/repository/index", js({"ready": True}))
    load("broken", "broken")
    load("no backend", "nobackend")
    load("bad text", "badtext")
    load("wrong name", "wrongname")
    load("ensemble of nothing", "hollow")
    load("no version", "noversion")
    load("bad dims", "baddims")
    load("no inputs", "noinputs")
    load("twice", "twice")
    load("bad labels", "badlabels")
    load("batch negative", "batchnegative")
    load("bad instances", "badinstances")
    load("bad policy", "badpolicy")
    load("no config", "noconfig")
    index("broken models")
    for model in ("broken", "nobackend", "badtext", "hollow"):
        add(f"ready {model}", "GET", f"/v2/models/{model}/ready")
        add(f"infer {model}", "POST", f"/v2/models/{model}/infer", ask(inp([1])))
    add("ready with broken models", "GET", "/v2/health/ready")
    add("stats at last", "GET", "/v2/models/stats")
    return out


def write_broken(folder):
    """Models that cannot load, for explicit mode."""
    cpu = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    i, o = tensor("INPUT0", "INT32", "-1"), tensor("OUTPUT0", "INT32", "-1")
    models = {
        "broken": config("broken", [i], [o, tensor("O2", "INT32", "-1")]),
        "nobackend": simple("nobackend", "INT32").replace('"identity"', '"nothing_here"'),
        "badtext": "name: \"badtext\"\nbackend: \"identity\"\nno_such_field: 1\n",
        "wrongname": simple("othername", "INT32"),
        "hollow": ENSEMBLE.replace("chain", "hollow").replace("labels", "absent"),
        "noversion": simple("noversion", "INT32"),
        "baddims": simple("baddims", "INT32", "-2"),
        "noinputs": 'backend: "identity"\nmax_batch_size: 0\n' + cpu,
        "twice": config("twice", [i, i], [o]),
        "badlabels": config("badlabels", [i],
                            [tensor("OUTPUT0", "INT32", "-1", 'label_filename: "absent.txt"')]),
        "batchnegative": simple("batchnegative", "INT32", max_batch=-1),
        "badinstances": simple("badinstances", "INT32").replace("count: 1", "count: -1"),
        "badpolicy": simple("badpolicy", "INT32",
                            extra="version_policy { specific { versions: [ 9 ] } }"),
        "noconfig": "",
    }
    for name, text in models.items():
        path = pathlib.Path(folder) / name
        path.mkdir(parents=True)
        if name != "noversion":
            (path / "1").mkdir()
        if text:
            (path / "config.pbtxt").write_text(text)
