# SPDX-License-Identifier: Apache-2.0
"""Sequences, the response cache and warm-up: repository and requests for both servers.

The models are made of the probe backend, which answers with the inputs that it was given. Each
case is answered before the next one is sent, so that batches are the same on both sides.
"""
import pathlib

from cases import js, tensor

CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 2.5 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] } ]
"""
STATE = 'state [ { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ] %s } ]'
ZERO = 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "z" }'
FILE = 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] data_file: "seven" name: "s" }'


def probe(name, sequence="", batch=0, more=""):
    return (f'name: "{name}"\nbackend: "probe"\nmax_batch_size: {batch}\n'
            f'input [ {tensor("IN", "INT32", "1")} ]\n'
            f'output [ {tensor("SEEN", "STRING", "1")}, {tensor("SUM", "INT32", "1")} ]\n'
            f'instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n{sequence}\n{more}\n')


def sequence(text):
    return "sequence_batching { %s }" % text


def parameter(key, value):
    return 'parameters { key: "%s" value: { string_value: "%s" } }' % (key, value)


def warm(name, inputs, batch=1, count=0):
    inputs = " ".join('inputs { key: "%s" value: { %s } }' % i for i in inputs.items())
    return (f'model_warmup [ {{ name: "{name}" batch_size: {batch} {inputs} '
            + (f"count: {count} " if count else "") + "} ]\n")


LOGS = parameter("log_inputs", "yes") + "\n"
ZERO_IN = {"IN": "data_type: TYPE_INT32 dims: [ 1 ] zero_data: true"}
FILE_IN = {"IN": 'data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "seven"'}
CONTROLS_IN = ZERO_IN | {
    "START": "data_type: TYPE_INT32 dims: [ 1 ] zero_data: true",
    "END": "data_type: TYPE_FP32 dims: [ 1 ] zero_data: true",
    "READY": "data_type: TYPE_BOOL dims: [ 1 ] zero_data: true",
    "CORRID": "data_type: TYPE_UINT64 dims: [ 1 ] zero_data: true"}

MODELS = {
    "warm_zero": probe("warm_zero", "", 0, LOGS + warm("zero", ZERO_IN)),
    "warm_file": probe("warm_file", "", 0, LOGS + warm("file", FILE_IN, count=2)),
    "warm_batch": probe("warm_batch", "dynamic_batching { }", 4, LOGS + warm("b", FILE_IN, 3)),
    "warm_two": probe("warm_two", "", 0, LOGS + warm("one", ZERO_IN) + warm("two", FILE_IN)),
    "warm_none": probe("warm_none", "", 0, LOGS + warm("none", ZERO_IN, 0)),
    "warm_sequence": probe("warm_sequence", sequence("direct { }" + CONTROLS % "TYPE_UINT64"), 2,
                           LOGS + warm("s", CONTROLS_IN)),
    "direct": probe("direct", sequence("direct { }" + CONTROLS % "TYPE_UINT64" + STATE % ZERO), 2),
    "oldest": probe("oldest", sequence("oldest { max_candidate_sequences: 4 }"
                                       + CONTROLS % "TYPE_INT32" + STATE % ZERO), 4),
    "flat": probe("flat", sequence("direct { }" + CONTROLS % "TYPE_INT64" + STATE % FILE)),
    "one": probe("one", sequence("max_sequence_idle_microseconds: 60000000 "
                                 "oldest { max_candidate_sequences: 1 }" + STATE % ZERO)),
    "idle": probe("idle", sequence("max_sequence_idle_microseconds: 100000 " + STATE % ZERO)),
    "same": probe("same", sequence(STATE % (ZERO + " use_same_buffer_for_input_output: true"))),
    "again": probe("again", sequence("iterative_sequence: true" + CONTROLS % "TYPE_UINT64"
                                     + STATE % ZERO), 2, parameter("iterations", 4)),
    "again_oldest": probe("again_oldest", sequence("iterative_sequence: true oldest { "
                                                   "max_candidate_sequences: 2 }" + STATE % ZERO),
                          2, parameter("iterations", 4)),
    "reschedule": probe("reschedule", sequence(STATE % ZERO), 0, parameter("iterations", 4)),
    "fails": probe("fails", sequence("direct { }"), 0, parameter("fail", "on purpose")),
    "none": probe("none"),
}

# Loaded one by one: what the configuration says wrong.
BROKEN = {
    "warm_fails": parameter("fail", "on purpose") + warm("w", ZERO_IN, 1),
    "warm_no_file": warm("w", {"IN": 'data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "no"'}),
    "warm_short": warm("w", {"IN": 'data_type: TYPE_INT32 dims: [ 1 ] input_data_file: "short"'}),
    "warm_variable": warm("w", {"IN": "data_type: TYPE_INT32 dims: [ -1 ] zero_data: true"}),
    "warm_shape": warm("w", {"IN": "data_type: TYPE_INT32 dims: [ 2 ] zero_data: true"}),
    "warm_type": warm("w", {"IN": "data_type: TYPE_FP32 dims: [ 1 ] zero_data: true"}),
    "warm_missing": warm("w", {}),
    "warm_no_data": warm("w", {"IN": "data_type: TYPE_INT32 dims: [ 1 ]"}),
    "cached": sequence("") + "\nresponse_cache { enable: true }",
    "cached_decoupled": "response_cache { enable: true } "
                        "model_transaction_policy { decoupled: true }",
    "no_name": sequence('control_input [ { name: "" } ]'),
    "same_name": sequence('control_input [ { name: "A" }, { name: "A" } ]'),
    "no_values": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START '
                          '} ] } ]'),
    "two_values": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_END '
                           'int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ] } ] } ]'),
    "one_value": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_READY '
                          'bool_false_true: [ true ] } ] } ]'),
    "twice": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START '
                      'int32_false_true: [ 0, 1 ] } ] }, { name: "B" control [ { kind: '
                      'CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]'),
    "id_values": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_CORRID '
                          'data_type: TYPE_INT32 int32_false_true: [ 0, 1 ] } ] } ]'),
    "id_type": sequence('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_CORRID '
                        'data_type: TYPE_FP32 } ] } ]'),
    "preferred_zero": sequence("oldest { preferred_batch_size: [ 0 ] }"),
    "preferred_large": sequence("oldest { preferred_batch_size: [ 5 ] }"),
    "utilization": sequence("direct { minimum_slot_utilization: 1.5 }"),
    "state_type": sequence(STATE % 'initial_state: { data_type: TYPE_FP32 dims: [ 1 ] '
                           'zero_data: true name: "x" }'),
    "state_name": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] '
                           'zero_data: true }'),
    "state_rank": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 1, 1 ] '
                           'zero_data: true name: "x" }'),
    "state_dims": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 2 ] '
                           'zero_data: true name: "x" }'),
    "state_variable": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ -1 ] '
                               'zero_data: true name: "x" }'),
    "state_data": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] '
                           'name: "x" }'),
    "state_short": sequence(STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] '
                            'data_file: "short" name: "x" }'),
    "state_two": sequence(STATE % (ZERO + " " + ZERO)),
}


CACHE = "response_cache { enable: true }"
BATCHING = "dynamic_batching { }"
CACHED = {
    "kept": probe("kept", "", 0, CACHE),
    "kept_batch": probe("kept_batch", BATCHING, 4, CACHE),
    "not_kept": probe("not_kept"),
    "fails": probe("fails", "", 0, CACHE + "\n" + parameter("fail", "on purpose")),
    "chain": """name: "chain"
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "kept" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "SEEN" value: "OUT" }
  output_map { key: "SUM" value: "SUM" } } ] }
response_cache { enable: true }
""",
}


def cache_cases():
    out = []
    for model, batch in (("kept", None), ("kept_batch", 1), ("not_kept", None), ("fails", None),
                         ("chain", None)):
        for i in range(3):
            out.append((f"cache/{model}/same {i}", *ask(model, value=3, batch=batch)))
        out.append((f"cache/{model}/other", *ask(model, value=4, batch=batch)))
        out.append((f"cache/{model}/other again", *ask(model, value=4, batch=batch)))
        out.append((f"cache/{model}/with id", *ask(model, value=4, batch=batch, id="7")))
    out.append(("cache/kept/binary", *ask("kept", value=4, parameters={
        "binary_data_output": True})))
    for model in CACHED:
        out.append((f"cache/{model}/stats", "GET", f"/v2/models/{model}/stats"))
        out.append((f"cache/{model}/config", "GET", f"/v2/models/{model}/config"))
    return out


def write_repository(folder, models):
    for name, text in models.items():
        model = pathlib.Path(folder) / name
        (model / "1").mkdir(parents=True, exist_ok=True)
        (model / "initial_state").mkdir(exist_ok=True)
        (model / "initial_state/seven").write_bytes((7).to_bytes(4, "little"))
        (model / "initial_state/short").write_bytes(b"xx")
        (model / "warmup").mkdir(exist_ok=True)
        (model / "warmup/seven").write_bytes((7).to_bytes(4, "little"))
        (model / "warmup/short").write_bytes(b"xx")
        (model / "config.pbtxt").write_text(text)


def write_broken(folder):
    write_repository(folder, {name: probe(name, text) for name, text in BROKEN.items()})


def ask(model, seq=None, start=None, end=None, value=1, batch=None, **more):
    parameters = {k: v for k, v in (("sequence_id", seq), ("sequence_start", start),
                                    ("sequence_end", end)) if v is not None}
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1] if batch is None
                        else [batch, 1], "data": [value] * (batch or 1)}], **more}
    if parameters:
        body["parameters"] = parameters
    return "POST", f"/v2/models/{model}/infer", js(body)


def cases():
    out = []

    def add(name, *request):
        out.append((name, *request))

    for model, batch in (("direct", 1), ("oldest", 1), ("flat", None), ("one", None),
                         ("same", None)):
        for i in range(4):
            add(f"sequence/{model}/{i}", *ask(model, 42, i == 0, i == 3, i + 1, batch))
        add(f"sequence/{model}/both", *ask(model, 43, True, True, 2, batch))
        add(f"sequence/{model}/unknown", *ask(model, 44, value=2, batch=batch))
        add(f"sequence/{model}/end unknown", *ask(model, 44, end=True, batch=batch))
        add(f"sequence/{model}/no id", *ask(model, batch=batch))
        add(f"sequence/{model}/id zero", *ask(model, 0, True, batch=batch))
        add(f"sequence/{model}/empty id", *ask(model, "", True, batch=batch))
        add(f"sequence/{model}/twice started", *ask(model, 45, True, value=5, batch=batch))
        add(f"sequence/{model}/twice started again", *ask(model, 45, True, value=1, batch=batch))
        add(f"sequence/{model}/twice started end", *ask(model, 45, None, True, 1, batch))
        add(f"sequence/{model}/after end", *ask(model, 45, batch=batch))
        add(f"sequence/{model}/large id", *ask(model, 2 ** 64 - 1, True, True, batch=batch))
        add(f"sequence/{model}/negative id", *ask(model, -1, True, True, batch=batch))
        add(f"sequence/{model}/flags of a kind", *ask(model, 4, 1, 0, batch=batch))
        add(f"sequence/{model}/config", "GET", f"/v2/models/{model}/config")
        add(f"sequence/{model}/metadata", "GET", f"/v2/models/{model}")
    add("sequence/direct/batch two", *ask("direct", 6, True, batch=2))
    add("sequence/text id", *ask("one", "some text", True, True))
    add("sequence/text id/unknown", *ask("one", "other"))
    add("sequence/text id/long", *ask("one", "x" * 128, True, True))
    add("sequence/text id/too long", *ask("one", "x" * 129, True, True))
    add("sequence/slots/first", *ask("direct", 1, True, batch=1))
    add("sequence/slots/second", *ask("direct", 2, True, batch=1))
    add("sequence/slots/second again", *ask("direct", 2, batch=1))
    add("sequence/slots/first ends", *ask("direct", 1, None, True, batch=1))
    add("sequence/slots/third", *ask("direct", 3, True, batch=1))
    add("sequence/slots/second ends", *ask("direct", 2, None, True, batch=1))
    add("sequence/slots/third ends", *ask("direct", 3, None, True, batch=1))
    add("sequence/fails/start", *ask("fails", 1, True))
    add("sequence/fails/next", *ask("fails", 1))
    add("sequence/fails/end", *ask("fails", 1, None, True))
    add("sequence/reschedule", *ask("reschedule", 1, True, True))
    add("sequence/none", *ask("none", 5, True))
    add("sequence/none/no id", *ask("none"))
    for model in ("again", "again_oldest"):
        for i in range(3):
            add(f"iterative/{model}/{i}", *ask(model, batch=1))
        add(f"iterative/{model}/own id", *ask(model, 900, True, batch=1))
    for model in MODELS:
        add(f"stats/{model}", "GET", f"/v2/models/{model}/stats")
    # Last: NVIDIA's program answers before its sequence has ended, and would take the id again until then.
    for model in ("again", "again_oldest"):
        add(f"iterative/{model}/own id again", *ask(model, 900, batch=1))
    return out


def broken_cases():
    out = []
    for name in BROKEN:
        out.append((f"broken/{name}", "POST", f"/v2/repository/models/{name}/load", js({})))
    return out


# A model whose state is refused, or whose warm-up fails, ends NVIDIA's program, not always at once.
END_THEIRS = {f"broken/{name}" for name in BROKEN if name.startswith(("state_", "warm_"))}
