# SPDX-License-Identifier: Apache-2.0
"""What both servers are asked: code for the model `lab` (CODE), and requests to other models.

The answers of NVIDIA's server 2.51.0 to CODE are the expectation of test_api.py's cases too: `want`
is a text, an error (a regular expression for its message), or None where compare.py alone looks.
"""
import collections

Case = collections.namedtuple("Case", "name code want error fields")


def case(name, code, want=None, error=None, **fields):
    return Case(name, code, want, error, fields)


X = {"name": "X", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}

BLS = """
def ask(model="add_sub", a=(1, 2), b=(10, 20), outputs=("SUM",), **kw):
    t = [pb_utils.Tensor("A", np.array([a], np.float32)), pb_utils.Tensor("B", np.array([b], np.float32))]
    return pb_utils.InferenceRequest(model_name=model, inputs=t, requested_output_names=list(outputs), **kw)
def show(r):
    if r.has_error():
        return f"error {r.error().code()} {r.error().message()}"
    return {t.name(): t.as_numpy().tolist() for t in r.output_tensors()}
def number(n, model="repeat", how=None):
    t = [pb_utils.Tensor("N", np.array([n], np.int32))]
    if how: t.append(pb_utils.Tensor("HOW", np.array([how], dtype=object)))
    return pb_utils.InferenceRequest(model_name=model, inputs=t, requested_output_names=["I"])
"""

LAB = [
    # ---- requests ----
    case("request", """
result = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
          sorted(request.requested_output_names()), request.trace().get_context()]""",
         "['r1', 0, 0, 0, ['RESULT', 'Y'], None]", id="r1"),
    case("parameters", "result = sorted(json.loads(request.parameters()).items())",
         "[('a', 1), ('b', 'two'), ('c', True), ('d', 0.5)]",
         parameters={"a": 1, "b": "two", "c": True, "d": 0.5}),
    case("parameters as text", "result = request.parameters()", None,
         parameters={"a": 1, "b": "two", "c": True}),
    case("timeout", "result = request.timeout()", None, parameters={"timeout": 12345678}),
    case("requested outputs", "result = sorted(request.requested_output_names())", "['RESULT']",
         outputs=[{"name": "RESULT"}]),
    case("optional input", "result = len(request.inputs())", "1"),
    case("inputs", "result = [t.name() for t in request.inputs()]", "['CODE', 'X']", inputs=[X]),
    case("lookup of nothing", "result = pb_utils.get_input_tensor_by_name(request, 'no')", "None"),
    case("is_cancelled", "result = request.is_cancelled()", "False"),
    case("set_release_flags", "request.set_release_flags(1); result = 'set'", "set"),
    case("args", """
a = dict(self.args); a.pop("model_config"); a.pop("model_repository")
result = sorted(a.items())""",
         "[('model_instance_device_id', '0'), ('model_instance_kind', 'CPU'), "
         "('model_instance_name', 'lab_0_0'), ('model_name', 'lab'), ('model_version', '1')]"),
    case("config", """
c = json.loads(self.args["model_config"])
result = [c["name"], c["backend"], pb_utils.get_input_config_by_name(c, "X")["dims"],
          pb_utils.get_output_config_by_name(c, "Y")["data_type"],
          pb_utils.get_input_config_by_name(c, "no"), pb_utils.using_decoupled_model_transaction_policy(c)]""",
         "['lab', 'python', [-1], 'TYPE_FP32', None, False]"),
    case("model dir", "result = pb_utils.get_model_dir()[-6:]", "/lab/1"),
    case("module name", "result = [type(self).__module__, type(self).__name__]",
         "['1.model', 'TritonPythonModel']"),
    # ---- tensors ----
    case("tensor", """
t = pb_utils.get_input_tensor_by_name(request, "X"); a = t.as_numpy()
result = [t.name(), t.is_cpu(), list(t.shape()), a.dtype.name, a.tolist(), a.flags.writeable]""",
         "['X', True, [3], 'float32', [1.0, 2.0, 3.0], True]", inputs=[X]),
    case("tensor output", "response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.arange(4, dtype=np.float32))])",
         ),
    case("tensor not contiguous", """
a = np.arange(12, dtype=np.float32).reshape(3, 4).T
response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', a[:, 0])])"""),
    case("tensor empty", "response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros([0], np.float32))])"),
    case("tensor scalar shape", "result = list(pb_utils.Tensor('t', np.array(3.0)).shape())", "[]"),
    case("tensor types", """
result = [pb_utils.Tensor('t', np.zeros(2, t)).as_numpy().dtype.name for t in
          (np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32,
           np.int64, np.float16, np.float32, np.float64)]""",
         "['bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', "
         "'float16', 'float32', 'float64']"),
    case("tensor bad type", "pb_utils.Tensor('t', np.zeros(2, np.complex64))",
         error="NumPy dtype is not supported."),
    case("tensor unicode array", "pb_utils.Tensor('t', np.array(['a', 'b']))",
         error="NumPy dtype is not supported."),
    case("tensor big endian", "pb_utils.Tensor('t', np.zeros(2, '>i4'))",
         error="NumPy dtype is not supported."),
    case("tensor no name", "pb_utils.Tensor('', np.zeros(2, np.int8))",
         error="Tensor name cannot be an empty string."),
    case("tensor from list", "pb_utils.Tensor('t', [1, 2])", error="incompatible constructor"),
    case("tensor same array", """
a = np.zeros(3, np.int32); t = pb_utils.Tensor('t', a); a[1] = 5
result = t.as_numpy().tolist()""", "[0, 5, 0]"),
    case("strings", """
t = pb_utils.Tensor('t', np.array(['a', b'b\\x00c', 'ü', 5, None], dtype=object))
result = t.as_numpy().tolist()""", "['a', b'b\\x00c', 'ü', 5, None]"),
    case("strings out", """
response = pb_utils.InferenceResponse([pb_utils.Tensor('RESULT', np.array(['ü', b'raw', 5], dtype=object))])"""),
    case("strings fixed", """
response = pb_utils.InferenceResponse([pb_utils.Tensor('RESULT', np.array([b'ab', b'c'], dtype=np.bytes_))])"""),
    case("strings in", "result = request.inputs()[0].as_numpy().dtype", "object"),
    case("strings empty", "response = pb_utils.InferenceResponse([pb_utils.Tensor('RESULT', np.array([], dtype=object))])"),
    case("dlpack", """
a = np.arange(6, dtype=np.int16).reshape(2, 3)
t = pb_utils.Tensor.from_dlpack('t', a)
result = [t.name(), list(t.shape()), t.as_numpy().tolist(), t.__dlpack_device__(), t.is_cpu()]""",
         "['t', [2, 3], [[0, 1, 2], [3, 4, 5]], (1, 0), True]"),
    case("dlpack of an input", """
x = pb_utils.get_input_tensor_by_name(request, 'X')
t = pb_utils.Tensor.from_dlpack('t', x.to_dlpack()); b = np.from_dlpack(x)
result = [t.as_numpy().tolist(), b.tolist()]""", "[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]", inputs=[X]),
    case("dlpack round", """
x = pb_utils.get_input_tensor_by_name(request, 'X')
y = pb_utils.Tensor.from_dlpack('Y', x)
del x
response = pb_utils.InferenceResponse([y])""", inputs=[X]),
    case("dlpack of strings", "request.inputs()[0].to_dlpack()",
         error="DLPack does not have support for string tensors."),
    case("dlpack of nothing", "pb_utils.Tensor.from_dlpack('t', 3)",
         error="Provided tensor is not supported"),
    case("dlpack not contiguous", """
pb_utils.Tensor.from_dlpack('t', np.arange(12, dtype=np.int16).reshape(3, 4).T)""",
         error="DLPack tensor is not contiguous"),
    case("dlpack no name", "pb_utils.Tensor.from_dlpack('', np.zeros(2))",
         error="Tensor name cannot be an empty string."),
    # ---- responses and errors ----
    case("error", "response = pb_utils.InferenceResponse(error=pb_utils.TritonError('not today'))",
         error="^not today$"),
    *[case(f"error {code}", f"response = pb_utils.InferenceResponse(error=pb_utils.TritonError('x {code}', pb_utils.TritonError.{code}))",
           error=f"^x {code}$")
      for code in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
                   "ALREADY_EXISTS", "CANCELLED")],
    case("error object", "e = pb_utils.TritonError('x', pb_utils.TritonError.NOT_FOUND); result = [e.message(), int(e.code())]",
         "['x', 2]"),
    case("response object", """
r = pb_utils.InferenceResponse([], error=None); e = pb_utils.InferenceResponse(error=pb_utils.TritonError('x'))
result = [r.has_error(), r.output_tensors(), e.has_error(), e.error().message(), r.error()]""",
         "[False, [], True, 'x', None]"),
    case("response with outputs and error", """
response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros(1, np.float32))], pb_utils.TritonError('both'))""",
         error="^both$"),
    case("response parameters", """
t = pb_utils.Tensor('RESULT', np.array(['x'], dtype=object))
response = pb_utils.InferenceResponse([t], parameters={'a': 1, 'b': 'two', 'c': True})"""),
    case("response parameters read", """
result = pb_utils.InferenceResponse([], parameters={'a': 1}).parameters()""", '{"a": 1}'),
    case("response parameters bad key", "pb_utils.InferenceResponse([], parameters={1: 2})",
         error="Expect parameters keys to have type str, found type <class 'int'>"),
    case("response parameters bad value", "pb_utils.InferenceResponse([], parameters={'a': 2.5})",
         error="Expect parameters values to have type bool/int/str, found type <class 'float'>"),
    case("response None in outputs", "pb_utils.InferenceResponse([None])", error="."),
    case("unknown output", "response = pb_utils.InferenceResponse([pb_utils.Tensor('NO', np.zeros(1, np.float32))])"),
    case("not requested output", """
response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros(1, np.float32)),
                                       pb_utils.Tensor('RESULT', np.array(['x'], dtype=object))])""",
         "x", outputs=[{"name": "RESULT"}]),
    case("wrong type of output", "response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros(1, np.int8))])"),
    case("wrong shape of output", "response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.zeros([1, 2, 3], np.float32))])"),
    case("raise", "raise ValueError('this went wrong')",
         error="^Failed to process the request\\(s\\) for model 'lab_0_0', message: ValueError: this "
               "went wrong\n\nAt:\n  code\\(1\\): <module>\n  .*/lab/1/model.py\\([0-9]+\\): execute\n$"),
    case("raise from below", "def f():\n  g()\ndef g():\n  {}['key']\nf()",
         error="message: KeyError: 'key'\n\nAt:\n  code\\(4\\): g\n  code\\(2\\): f\n"),
    case("raise model exception", "raise pb_utils.TritonModelException('mine')",
         error="message: TritonModelException: mine\n\nAt:\n"),
    case("raise without text", "raise RuntimeError", error="message: RuntimeError: <EMPTY MESSAGE>\n\nAt:"),
    case("raise from other", "try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise KeyError('x') from e",
         error="KeyError: 'x'"),
    case("syntax error", "this is wrong (", error="SyntaxError"),
    case("exit", "raise SystemExit(3)", error="SystemExit: 3"),
    # ---- the return value ----
    case("return nothing in list", "answer = []",
         error="Number of InferenceResponse objects do not match the number of InferenceRequest "
               "objects. InferenceRequest\\(s\\) size is:1, and InferenceResponse\\(s\\) size is:0"),
    case("return two", "r = pb_utils.InferenceResponse([]); answer = [r, r]",
         error="size is:1, and InferenceResponse\\(s\\) size is:2"),
    case("return a tuple", "answer = (1,)",
         error="Expected a list in the execute return, found type '<class 'tuple'>'."),
    case("return a number", "answer = [3]",
         error="Expected an 'InferenceResponse' object in the execute function return list, found "
               "type '<class 'int'>'."),
    # ---- response sender of a model that is not decoupled ----
    case("sender", """
t = pb_utils.Tensor('RESULT', np.array(['sent'], dtype=object))
request.get_response_sender().send(pb_utils.InferenceResponse([t]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
answer = None""", "sent"),
    case("sender then return", """
t = pb_utils.Tensor('RESULT', np.array(['sent'], dtype=object))
request.get_response_sender().send(pb_utils.InferenceResponse([t]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
response = pb_utils.InferenceResponse([t])""", "sent"),
    case("sender twice", """
s = request.get_response_sender(); out = []
t = pb_utils.Tensor('RESULT', np.array(['once'], dtype=object))
s.send(pb_utils.InferenceResponse([t]))
try: s.send(pb_utils.InferenceResponse([t]))
except Exception as e: self.kept['e'] = type(e).__name__ + ' ' + str(e)
s.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
answer = None""", "once"),
    case("sender twice, text", "result = self.kept.get('e')",
         "TritonModelException Unable to send response. Non-decoupled model cannot send more than one "
         "response."),
    case("sender final first", "request.get_response_sender().send(flags=1)",
         error="Unable to send response. Non-decoupled model cannot send complete final before "
               "sending a response."),
    case("sender bad flags", "request.get_response_sender().send(pb_utils.InferenceResponse([]), 9)",
         error="Unable to send response. Unsupported flag provided."),
    case("sender nothing", "request.get_response_sender().send()",
         error="Inference Response object must be provided when the response flags is set to zero."),
    case("sender closed", """
s = request.get_response_sender()
t = pb_utils.Tensor('RESULT', np.array(['x'], dtype=object))
s.send(pb_utils.InferenceResponse([t]), 1)
try: s.send(flags=1)
except Exception as e: self.kept['c'] = str(e)
answer = None""", "x"),
    case("sender closed, text", "result = self.kept.get('c')",
         "Unable to send response. Response sender has been closed."),
    case("sender is_cancelled", "result = request.get_response_sender().is_cancelled()", "False"),
    case("sender error", """
s = request.get_response_sender()
s.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('sent error', pb_utils.TritonError.NOT_FOUND)), 1)
answer = None""", error="^sent error$"),
    # ---- other models ----
    case("bls", BLS + "result = show(ask().exec())", "{'SUM': [[11.0, 22.0]]}"),
    case("bls two outputs", BLS + "result = show(ask(outputs=('SUM', 'DIFF'), request_id='x').exec())",
         "{'SUM': [[11.0, 22.0]], 'DIFF': [[-9.0, -18.0]]}"),
    case("bls unknown model", BLS + "result = show(ask('nobody').exec())"),
    case("bls unknown version", BLS + "result = show(ask(model_version=7).exec())"),
    case("bls bad shape", BLS + "result = show(ask(b=(1,)).exec())"),
    case("bls missing input", BLS + """
r = pb_utils.InferenceRequest(model_name='add_sub', requested_output_names=['SUM'],
    inputs=[pb_utils.Tensor('A', np.zeros([1, 1], np.float32))]).exec()
result = show(r)"""),
    case("bls unknown output", BLS + "result = show(ask(outputs=('NO',)).exec())"),
    case("bls bad type", BLS + """
r = pb_utils.InferenceRequest(model_name='add_sub', requested_output_names=['SUM'],
    inputs=[pb_utils.Tensor(n, np.zeros([1, 1], np.int32)) for n in 'AB']).exec()
result = show(r)"""),
    case("bls of a decoupled model without saying so", BLS + "result = show(number(3).exec())"),
    case("bls error of the model", BLS + """
r = pb_utils.InferenceRequest(model_name='lab', requested_output_names=['RESULT'],
    inputs=[pb_utils.Tensor('NO', np.zeros([1], np.int32))]).exec()
result = show(r)"""),
    case("bls empty output name", BLS + "ask(outputs=('',))", error="should not be empty"),
    case("bls bad correlation id", BLS + "ask(correlation_id=1.5)",
         error="Correlation ID must be integer or string"),
    case("bls bad parameters", BLS + "ask(parameters={'a': []})",
         error="Expect parameters values to have type bool/int/str"),
    case("bls request object", BLS + """
r = ask(request_id='id', correlation_id='c', flags=1, timeout=99, parameters={'p': 1}); r.set_flags(2)
result = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), r.requested_output_names() == ['SUM'] or r.requested_output_names() == {'SUM'}]""",
         "['id', 'c', 2, 99, '{\"p\": 1}', True]"),
    case("bls preferred memory", BLS + """
result = show(ask(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)).exec())""",
         "{'SUM': [[11.0, 22.0]]}"),
    case("bls decoupled", BLS + "result = [show(r) for r in number(3).exec(decoupled=True)]",
         "[{'I': [0]}, {'I': [1]}, {'I': [2]}, {}]"),
    case("bls decoupled late", BLS + "result = [show(r) for r in number(2, how='late').exec(decoupled=True)]",
         "[{'I': [0]}, {'I': [1]}]"),
    case("bls decoupled twice", BLS + """
it = number(2).exec(decoupled=True)
result = [[show(r) for r in it], [show(r) for r in it]]"""),
    case("bls decoupled error", BLS + "result = [show(r) for r in number(3, how='error').exec(decoupled=True)]",
         "[{'I': [0]}, 'error __ErrorCode.INVALID_ARG one is bad', {'I': [2]}, {}]"),
    case("bls decoupled none", BLS + "result = [show(r) for r in number(0).exec(decoupled=True)]", "[{}]"),
    case("bls decoupled of a plain model", BLS + "result = [show(r) for r in ask().exec(decoupled=True)]"),
    case("bls decoupled unknown", BLS + "result = [show(r) for r in ask('nobody').exec(decoupled=True)]"),
    case("bls decoupled raise", BLS + "result = [show(r)[:40] for r in number(3, how='raise').exec(decoupled=True)]"),
    case("bls large", BLS + """
a = np.arange(300000, dtype=np.float32).reshape(1, -1)
r = pb_utils.InferenceRequest(model_name='add_sub', requested_output_names=['SUM', 'DIFF'],
    inputs=[pb_utils.Tensor('A', a), pb_utils.Tensor('B', a)]).exec()
result = [float(t.as_numpy().sum()) for t in r.output_tensors()]""", None),
    case("bls strings", """
t = pb_utils.Tensor('CODE', np.array(["result = 'inner ü'"], dtype=object))
r = pb_utils.InferenceRequest(model_name='lab2', inputs=[t], requested_output_names=['RESULT']).exec()
result = r.output_tensors()[0].as_numpy()[0].decode()""", "inner ü"),
    case("bls ensemble", BLS + "result = show(ask('chain', outputs=('OUT',)).exec())"),
    case("bls parameters reach", """
t = pb_utils.Tensor('CODE', np.array(["result = [request.parameters(), request.request_id(), request.correlation_id()]"], dtype=object))
r = pb_utils.InferenceRequest(model_name='lab2', inputs=[t], requested_output_names=['RESULT'],
    parameters={'a': 1, 'b': 'x', 'c': True}, request_id='q', correlation_id=77).exec()
result = r.output_tensors()[0].as_numpy()[0].decode()"""),
    # ---- model control, log, metrics ----
    case("is_model_ready", """
result = [pb_utils.is_model_ready('add_sub'), pb_utils.is_model_ready('add_sub', '1'),
          pb_utils.is_model_ready('add_sub', '9')]"""),
    case("is_model_ready unknown", "result = pb_utils.is_model_ready('nobody')"),
    case("is_model_ready bad version", "pb_utils.is_model_ready('add_sub', 'x')",
         error="failed to get model version from specified version string 'x'"),
    case("load in mode none", "pb_utils.load_model('add_sub')", error="Failed to load model: "),
    case("unload in mode none", "pb_utils.unload_model('add_sub')", error="Failed to unload model: "),
    case("load bad files", "pb_utils.load_model('add_sub', files=3)",
         error="files should be a dictionary of file paths and file contents"),
    case("log", """
pb_utils.Logger.log_info('info from the lab'); pb_utils.Logger.log_warn('warn'); pb_utils.Logger.log_error('err')
pb_utils.Logger.log_verbose('verbose'); pb_utils.Logger.log('plain'); pb_utils.Logger.log('at level', pb_utils.Logger.ERROR)
result = 'logged'""", "logged"),
    case("counter", """
f = pb_utils.MetricFamily('lab_count', 'counts', pb_utils.MetricFamily.COUNTER)
m = f.Metric(labels={'model': 'lab', 'n': '1'}); m.increment(2); m.increment(0.5)
self.kept['f'] = f
result = m.value()""", "2.5"),
    case("counter negative", "m = self.kept['f'].Metric(labels={'x': 'y'}); m.increment(-1)",
         error="Failed to increment metric value"),
    case("counter set", "m = self.kept['f'].Metric(labels={'x': 'z'}); m.set(3)",
         error="Failed to set metric value"),
    case("counter observe", "m = self.kept['f'].Metric(labels={'x': 'z'}); m.observe(3)",
         error="Failed to observe metric value"),
    case("gauge", """
f = pb_utils.MetricFamily(name='lab_gauge', description='moves', kind=pb_utils.MetricFamily.GAUGE)
m = f.Metric(labels={'a': 'b'}); m.set(7); m.increment(-2.5)
result = m.value()""", "4.5"),
    case("histogram", """
f = pb_utils.MetricFamily('lab_hist', 'spread', pb_utils.MetricFamily.HISTOGRAM)
m = f.Metric(labels={'a': 'b'}, buckets=[1.0, 5.0]); m.observe(3); m.observe(9); self.kept['h'] = (f, m)
result = 'observed'"""),
    case("metric bad labels", "self.kept['f'].Metric(labels=3)",
         error="Failed to create metric. Labels must be a dictionary."),
    case("metric unexpected buckets", "self.kept['f'].Metric(labels={}, buckets=[1.0])",
         error="Failed to create metric. Unexpected buckets found."),
    # ---- the module ----
    case("serialize", """
s = pb_utils.serialize_byte_tensor(np.array(['a', b'bc'], dtype=object))
result = [bytes(s), pb_utils.deserialize_bytes_tensor(bytes(s)).tolist(),
          pb_utils.serialize_byte_tensor(np.array([], dtype=object)), pb_utils.serialize_byte_tensor(np.zeros(2))]"""),
    case("type tables", """
names = ['BOOL', 'UINT8', 'UINT16', 'UINT32', 'UINT64', 'INT8', 'INT16', 'INT32', 'INT64', 'FP16', 'FP32', 'FP64', 'STRING']
result = [np.dtype(pb_utils.triton_string_to_numpy('TYPE_' + n)).name for n in names]
result += [np.dtype(pb_utils.triton_to_numpy_type(i)).name for i in range(1, 14)]
result += [pb_utils.numpy_to_triton_type(t) for t in (np.bool_, np.uint8, np.int64, np.float16, np.object_, np.bytes_, np.complex64)]"""),
    case("type unknown", "pb_utils.triton_string_to_numpy('TYPE_NO')", error="KeyError: 'TYPE_NO'"),
    case("constants", """
result = [getattr(pb_utils, n) for n in ('TRITONSERVER_REQUEST_FLAG_SEQUENCE_START',
    'TRITONSERVER_REQUEST_FLAG_SEQUENCE_END', 'TRITONSERVER_RESPONSE_COMPLETE_FINAL',
    'TRITONSERVER_REQUEST_RELEASE_ALL', 'TRITONSERVER_REQUEST_RELEASE_RESCHEDULE')]""",
         "[1, 2, 1, 1, 2]"),
    case("public names", """
import triton_python_backend_utils as u
wanted = ['InferenceRequest', 'InferenceResponse', 'Logger', 'MetricFamily', 'ModelConfig', 'PreferredMemory',
  'TRITONSERVER_MEMORY_CPU', 'TRITONSERVER_MEMORY_GPU', 'TRITON_STRING_TO_NUMPY', 'Tensor', 'TritonError',
  'TritonModelException', 'deserialize_bytes_tensor', 'get_input_config_by_name', 'get_input_tensor_by_name',
  'get_model_dir', 'get_output_config_by_name', 'get_output_tensor_by_name', 'is_model_ready', 'load_model',
  'numpy_to_triton_type', 'serialize_byte_tensor', 'triton_string_to_numpy', 'triton_to_numpy_type',
  'unload_model', 'using_decoupled_model_transaction_policy']
result = [n for n in wanted if not hasattr(u, n)]""", "[]"),
    case("model config", """
m = pb_utils.ModelConfig('{"name": "m", "max_batch_size": 0, "input": [], "output": []}')
m.add_input({'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True})
m.add_output({'name': 'b', 'data_type': 'TYPE_FP32', 'dims': [1]})
m.set_max_batch_size(4); m.set_dynamic_batching(); m.set_model_transaction_policy({'decoupled': True})
out = [sorted(m.as_dict().items())]
def bad(f, *a):
    try: f(*a); out.append('fine')
    except ValueError as e: out.append(str(e))
bad(m.set_max_batch_size, 2); bad(m.add_input, {'name': 'a', 'data_type': 'TYPE_INT8', 'dims': [1]})
bad(m.add_input, {'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [2]}); bad(m.add_input, {'name': 'q'})
bad(m.add_input, {'name': 'q', 'data_type': 'x'}); bad(m.add_input, {'data_type': 'x'})
bad(m.add_input, {'name': 'q', 'x': 1}); bad(m.add_output, {'name': 'q', 'optional': True})
bad(m.add_output, {'name': 'b', 'data_type': 'TYPE_INT8', 'dims': [1]})
bad(m.add_output, {'name': 'b', 'data_type': 'TYPE_FP32', 'dims': [3]}); bad(m.add_output, {'name': 'b'})
bad(m.add_input, {'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': False})
bad(m.set_model_transaction_policy, {'x': 1}); bad(m.set_model_transaction_policy, {'decoupled': False})
s = pb_utils.ModelConfig('{"name": "m", "max_batch_size": 0, "sequence_batching": {}}'); bad(s.set_dynamic_batching)
result = json.dumps(out)"""),
    case("logger levels", """
L = pb_utils.Logger
result = [L.INFO is not None, L.WARNING is not None, L.ERROR is not None, L.VERBOSE is not None, L.LogLevel.INFO == L.INFO]"""),
]


def n(value, name="N"):
    return {"name": name, "datatype": "INT32", "shape": [1], "data": [value]}


def how(value):
    return {"name": "HOW", "datatype": "BYTES", "shape": [1], "data": [value]}


AB = [{"name": "A", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
      {"name": "B", "datatype": "FP32", "shape": [1, 2], "data": [10, 20]}]
X4 = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}

# name, method, path, body
REQUESTS = [
    ("add_sub", "POST", "/v2/models/add_sub/infer", {"inputs": AB}),
    ("add_sub one output", "POST", "/v2/models/add_sub/infer",
     {"inputs": AB, "outputs": [{"name": "DIFF"}]}),
    ("chain", "POST", "/v2/models/chain/infer", {"inputs": AB}),
    ("repeat by infer", "POST", "/v2/models/repeat/infer", {"inputs": [n(2)]}),
    ("repeat", "POST", "/v2/models/repeat/generate_stream", {"N": 3}),
    ("repeat none", "POST", "/v2/models/repeat/generate_stream", {"N": 0}),
    ("repeat late", "POST", "/v2/models/repeat/generate_stream", {"N": 2, "HOW": "late"}),
    ("repeat error", "POST", "/v2/models/repeat/generate_stream", {"N": 3, "HOW": "error"}),
    ("repeat raise", "POST", "/v2/models/repeat/generate_stream", {"N": 3, "HOW": "raise"}),
    ("repeat return", "POST", "/v2/models/repeat/generate_stream", {"N": 3, "HOW": "return"}),
    ("repeat two finals", "POST", "/v2/models/repeat/generate_stream", {"N": 3, "HOW": "two"}),
    ("arepeat", "POST", "/v2/models/arepeat/generate_stream", {"N": 3}),
    ("auto config", "GET", "/v2/models/auto/config", None),
    ("auto", "POST", "/v2/models/auto/infer", {"inputs": [X4]}),
    ("auto metadata", "GET", "/v2/models/auto", None),
    ("asleep", "POST", "/v2/models/asleep/infer", {"inputs": [
        {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["await asyncio.sleep(0.01)\nreturn 'slept'"]}]}),
    ("asleep raises", "POST", "/v2/models/asleep/infer", {"inputs": [
        {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["raise ValueError('in a coroutine')"]}]}),
    ("iterative", "POST", "/v2/models/iterative/infer", {"inputs": [n(3)]}),
    ("ready", "GET", "/v2/models/add_sub/ready", None),
]

ASYNC_BLS = [
    ("await", BLS + "r = await ask().async_exec()\nreturn show(r)", "{'SUM': [[11.0, 22.0]]}"),
    ("gather", BLS + "rs = await asyncio.gather(*[ask(a=(i, i)).async_exec() for i in range(8)])\n"
     "return [show(r)['SUM'][0][0] for r in rs]",
     "[10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]"),
    ("decoupled", BLS + "it = await number(3).async_exec(decoupled=True)\nreturn [show(r) for r in it]",
     "[{'I': [0]}, {'I': [1]}, {'I': [2]}, {}]"),
    ("unknown", BLS + "r = await ask('nobody').async_exec()\nreturn show(r)", None),
]
