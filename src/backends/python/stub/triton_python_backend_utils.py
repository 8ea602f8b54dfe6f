# SPDX-License-Identifier: Apache-2.0
"""What a model.py sees of the server: tensors, requests, responses, and calls to other models.

The names and the meaning of everything public here are those of Triton's Python backend, so that
models written for it run unchanged. Tensors and the channel to the server are C
(c_python_backend_utils); the rest is here.
"""
import json
import os
import pickle
import socket
import struct
import sys
import threading

import numpy as np

import c_python_backend_utils as _c
from c_python_backend_utils import Tensor, TritonModelException  # noqa: F401

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

# ---- data types ----

_TYPES = (  # number, name in a configuration, NumPy
    (1, "TYPE_BOOL", np.bool_),
    (2, "TYPE_UINT8", np.uint8),
    (3, "TYPE_UINT16", np.uint16),
    (4, "TYPE_UINT32", np.uint32),
    (5, "TYPE_UINT64", np.uint64),
    (6, "TYPE_INT8", np.int8),
    (7, "TYPE_INT16", np.int16),
    (8, "TYPE_INT32", np.int32),
    (9, "TYPE_INT64", np.int64),
    (10, "TYPE_FP16", np.float16),
    (11, "TYPE_FP32", np.float32),
    (12, "TYPE_FP64", np.float64),
    (13, "TYPE_STRING", np.object_),
)
TRITON_STRING_TO_NUMPY = {name: bool if number == 1 else kind for number, name, kind in _TYPES}
_NUMBER_TO_NUMPY = {number: kind for number, _, kind in _TYPES}


def triton_string_to_numpy(triton_type_string):
    """NumPy type of a configuration's data type, e.g. "TYPE_FP32"."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type):
    """NumPy type of a numbered data type; None when there is none."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type):
    """Number of a NumPy type; None when the server has no such type."""
    if data_type == np.bytes_:
        return 13
    for number, _, kind in _TYPES:
        if data_type == kind:
            return number
    return None


def serialize_byte_tensor(input_tensor):
    """Length-prefixed bytes of an array of strings in C order; () for an empty array, None for
    arrays of anything else."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    parts = []
    for item in input_tensor.ravel(order="C").tolist():
        data = item if type(item) is bytes else str(item).encode("utf-8")
        parts.append(struct.pack("<I", len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor):
    """One-dimensional array of bytes objects from their length-prefixed form."""
    view = bytes(encoded_tensor)
    items, at = [], 0
    while at < len(view):
        (n,) = struct.unpack_from("<I", view, at)
        (item,) = struct.unpack_from(f"<{n}s", view, at + 4)
        items.append(item)
        at += 4 + n
    array = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array


# ---- looking things up ----

def get_input_tensor_by_name(inference_request, name):
    """The input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response, name):
    """The output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def _by_name(entries, name):
    for entry in entries:
        if entry["name"] == name:
            return entry
    return None


def get_input_config_by_name(model_config, name):
    """The input's part of a model configuration (a dict), or None."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config, name):
    """The output's part of a model configuration (a dict), or None."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether a model configuration (a dict) says decoupled."""
    if "model_transaction_policy" in model_config:
        return model_config["model_transaction_policy"]["decoupled"]
    return False


_model_dir = None


def get_model_dir():
    """Folder of the model's version, where model.py is."""
    return _model_dir


# ---- errors ----

class _Named(int):
    """A number with the name and the looks of an enumeration's value."""

    def __new__(cls, kind, name, value):
        self = super().__new__(cls, value)
        self.kind, self.name = kind, name
        return self

    def __str__(self):
        return f"{self.kind}.{self.name}"

    def __repr__(self):
        return f"<{self.kind}.{self.name}: {int(self)}>"

    def __format__(self, spec):
        return format(str(self), spec)

    @property
    def value(self):
        return int(self)


_CODES = tuple(_Named("__ErrorCode", name, i) for i, name in enumerate((
    "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
    "ALREADY_EXISTS", "CANCELLED")))


class TritonError:
    """An error of one request, sent to its client with a code."""

    (UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS,
     CANCELLED) = _CODES

    __slots__ = ("_message", "_code")

    def __init__(self, message, code=1):
        if not isinstance(message, str):
            raise TypeError("__init__(): incompatible constructor arguments. "
                            f"TritonError takes a str, not {type(message)}")
        self._message = message
        self._code = _CODES[code]

    def message(self):
        return self._message

    def code(self):
        return self._code


# ---- memory ----

TRITONSERVER_MEMORY_CPU = _Named("MemoryType", "TRITONSERVER_MEMORY_CPU", 0)
TRITONSERVER_MEMORY_GPU = _Named("MemoryType", "TRITONSERVER_MEMORY_GPU", 1)
_MEMORY_DEFAULT = 2


class PreferredMemory:
    """Where the outputs of an inference request to another model should be."""

    __slots__ = ("_type", "_device")

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        self._type = int(preferred_memory_type)
        self._device = int(preferred_device_id)


class InferenceTrace:
    """Ties a request to another model to the trace of the request that caused it."""

    __slots__ = ("_handle", "_context")

    def __init__(self):
        self._handle = 0
        self._context = ""

    def get_context(self):
        return self._context or None


# ---- responses ----

def _parameters_to_json(parameters):
    if parameters is None:
        return "{}"
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters)


class InferenceResponse:
    """Outputs, or an error, and parameters."""

    __slots__ = ("_outputs", "_error", "_parameters", "_last")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("__init__(): incompatible constructor arguments. "
                            f"error is a TritonError or None, not {type(error)}")
        self._outputs = list(output_tensors)
        for tensor in self._outputs:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException(
                        "Output tensor for inference response should not be empty.")
                raise TypeError("__init__(): incompatible constructor arguments. "
                                f"output_tensors is a list of Tensor, with {type(tensor)} in it")
        self._error = error
        self._parameters = "{}" if parameters is None else _parameters_to_json(parameters)
        self._last = True

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return self._parameters


def _response_of(answer):
    outputs, code, message, parameters, last = answer
    response = InferenceResponse.__new__(InferenceResponse)
    response._outputs = outputs
    response._error = None if message is None else TritonError(message, code)
    response._parameters = parameters
    response._last = bool(last)
    return response


class InferenceResponseSender:
    """Sends any number of responses of a decoupled model, or the one of another model, at any time
    until the final flag."""

    __slots__ = ("_handle", "_names", "_decoupled", "_closed", "_sent", "_lock")

    def __init__(self, handle, names, decoupled):
        self._handle = handle
        self._names = names
        self._decoupled = decoupled
        self._closed = False
        self._sent = 0
        self._lock = threading.Lock()

    def _count(self, response, flags):
        """Keeps the books before a response leaves; raises when it may not."""
        if self._decoupled is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state "
                "of the model.")
        with self._lock:
            if not self._decoupled:
                if response is not None and self._sent > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one "
                        "response.")
                if response is None and flags and self._sent == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final "
                        "before sending a response.")
            if self._closed:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed.")
            if flags:
                self._closed = True
            self._sent += 1

    def send(self, response=None, flags=0):
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("send(): incompatible function arguments. response is an "
                            f"InferenceResponse or None, not {type(response)}")
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to "
                "zero.")
        self._count(response, flags)
        _c._send(self._handle, flags, response, self._names)

    def is_cancelled(self):
        return _is_cancelled(self._handle)

    def _close(self):
        with self._lock:
            self._closed = True

    def __del__(self):
        # Gone without a final response: the server must not keep the client waiting.
        if not getattr(self, "_closed", True) and self._decoupled is not None:
            try:
                _c._post(_CALL_DROP, self._handle, 0)
            except TritonModelException:
                pass  # the server is gone too, or this is a child process


# ---- calls to the server: numbers of ipc.h ----

_CALL_LOG = 1
_CALL_DROP = 3
_CALL_CANCELLED = 4
_CALL_NEXT = 6
_CALL_INFER_CANCEL = 7
_CALL_INFER_DROP = 8
_CALL_FAMILY_NEW = 9
_CALL_FAMILY_DELETE = 10
_CALL_METRIC_NEW = 11
_CALL_METRIC_DELETE = 12
_CALL_METRIC_INCREMENT = 13
_CALL_METRIC_SET = 14
_CALL_METRIC_OBSERVE = 15
_CALL_METRIC_VALUE = 16
_CALL_LOAD = 17
_CALL_UNLOAD = 18
_CALL_IS_READY = 19

_phase = "start"  # then "running", then "finalizing"


def _text(*texts):
    """Strings as a message holds them: length, bytes, a zero."""
    parts = []
    for t in texts:
        data = t if isinstance(t, bytes) else t.encode("utf-8", "surrogatepass")
        parts += (struct.pack("<I", len(data)), data, b"\0")
    return b"".join(parts)


def _is_cancelled(handle):
    if not handle:
        return False
    return _c._call(_CALL_CANCELLED, handle, 0) != 0


# ---- requests ----

class InferenceRequest:
    """A request: one that the server gives to execute(), or one that a model makes for another."""

    __slots__ = ("_request_id", "_correlation_id", "_inputs", "_names", "_model_name",
                 "_model_version", "_flags", "_timeout", "_memory", "_trace", "_parameters",
                 "_handle", "_decoupled", "_release", "_sender")

    def __init__(self, request_id="", correlation_id=0, inputs=None, requested_output_names=None,
                 model_name=None, model_version=-1, flags=0, timeout=0, preferred_memory=None,
                 trace=None, parameters=None):
        for key, value, kind in (("request_id", request_id, str), ("inputs", inputs, object),
                                 ("requested_output_names", requested_output_names, object),
                                 ("model_name", model_name, str),
                                 ("model_version", model_version, int), ("flags", flags, int),
                                 ("timeout", timeout, int),
                                 ("correlation_id", correlation_id, object)):
            if value is None or not isinstance(value, kind):
                raise TypeError("__init__(): incompatible constructor arguments. "
                                f"InferenceRequest takes no {type(value)} as {key}")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._inputs = list(inputs)
        self._names = list(requested_output_names)
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name "
                    f"'{model_name}' should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError("__init__(): incompatible constructor arguments. "
                                f"inputs is a list of Tensor, with {type(tensor)} in it")
        for name in self._names:
            if not isinstance(name, str):
                raise TypeError("__init__(): incompatible constructor arguments. "
                                f"requested_output_names holds str, not {type(name)}")
            if name == "":
                raise TritonModelException(
                    f"Requested output name for request with id '{request_id}' and model name "
                    f"'{model_name}' should not be empty.")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._memory = preferred_memory
        self._trace = trace
        self._parameters = _parameters_to_json(parameters)
        self._handle = 0
        self._decoupled = None
        self._release = TRITONSERVER_REQUEST_RELEASE_ALL
        self._sender = None

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._request_id

    def correlation_id(self):
        return self._correlation_id

    def flags(self):
        return self._flags

    def set_flags(self, flags):
        self._flags = flags

    def timeout(self):
        return self._timeout

    def parameters(self):
        return self._parameters

    def trace(self):
        if self._trace is None:
            self._trace = InferenceTrace()
        return self._trace

    def preferred_memory(self):
        if self._memory is None:
            self._memory = PreferredMemory(_MEMORY_DEFAULT)
        return self._memory

    def requested_output_names(self):
        return self._names

    def get_response_sender(self):
        if self._sender is None:
            self._sender = InferenceResponseSender(self._handle, self._names, self._decoupled)
        return self._sender

    def is_cancelled(self):
        return _is_cancelled(self._handle)

    def set_release_flags(self, flags):
        self._release = int(flags)

    def _wire(self):
        memory = self._memory
        return (self._request_id, self._correlation_id, self._model_name, self._model_version,
                self._flags, self._timeout, self._parameters, self._names, self._inputs,
                _MEMORY_DEFAULT if memory is None else memory._type,
                0 if memory is None else memory._device,
                0 if self._trace is None else self._trace._handle)

    def exec(self, decoupled=False):
        if _phase != "running":
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if _parent is not None:
            return _ask_parent_to_infer(self, bool(decoupled))
        number, answer = _c._infer(self._wire(), bool(decoupled))
        if decoupled:
            return ResponseIterator(number, answer)
        return _response_of(answer)

    def async_exec(self, decoupled=False):
        import asyncio
        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)


def _make_request(handle, request_id, correlation_id, flags, timeout, parameters, names, trace,
                  context, inputs):
    """A request of the server; called for each one in an execution."""
    self = InferenceRequest.__new__(InferenceRequest)
    self._request_id = request_id
    self._correlation_id = correlation_id
    self._inputs = inputs
    self._names = names
    self._model_name = ""
    self._model_version = -1
    self._flags = flags
    self._timeout = timeout
    self._memory = None
    self._trace = None
    if trace or context:
        self._trace = InferenceTrace()
        self._trace._handle = trace
        self._trace._context = context
    self._parameters = parameters
    self._handle = handle
    self._decoupled = _decoupled
    self._release = TRITONSERVER_REQUEST_RELEASE_ALL
    self._sender = None
    return self


_decoupled = False


class ResponseIterator:
    """Responses of a request that was sent with decoupled=True; can be walked again from the start
    once it has reached the end."""

    def __init__(self, number, first):
        self._number = number
        self._responses = []
        self._at = 0
        self._done = False
        self._lock = threading.Lock()
        self._pending = first

    def __iter__(self):
        if self._done and self._at >= len(self._responses):
            self._at = 0
        return self

    def __next__(self):
        with self._lock:
            if self._at < len(self._responses):
                self._at += 1
                return self._responses[self._at - 1]
            if self._done:
                raise StopIteration("Iteration is done for the responses.")
            answer, self._pending = self._pending, None
            if answer is None and self._number:
                answer = _c._next(self._number)
            if answer is None:
                self._done = True
                raise StopIteration("Iteration is done for the responses.")
            response = _response_of(answer)
            self._done = response._last
            self._responses.append(response)
            self._at += 1
            return response

    def cancel(self):
        if not self._done and self._number:
            _c._call(_CALL_INFER_CANCEL, self._number, 0)

    def __del__(self):
        if getattr(self, "_number", 0):
            try:
                _c._post(_CALL_INFER_DROP, self._number, 0)
            except TritonModelException:
                pass


# ---- children of this process ----
#
# A model may fork, as multiprocessing does, and use other models there. The channel to the server
# belongs to the first process alone; each child has a socket to its parent, which asks for it.

_parent = None  # in a child: the socket
_parent_lock = threading.Lock()
_fork = threading.local()


def _send_object(sock, value):
    data = pickle.dumps(value, protocol=4)
    sock.sendall(struct.pack("<Q", len(data)) + data)


def _receive_object(sock):
    def exactly(n):
        data = bytearray()
        while len(data) < n:
            part = sock.recv(min(n - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return data
    (n,) = struct.unpack("<Q", exactly(8))
    return pickle.loads(exactly(n))


def _plain_tensors(tensors):
    return [(t.name(), t.as_numpy()) for t in tensors]


def _plain_response(response):
    error = response._error
    return (_plain_tensors(response._outputs), 0 if error is None else int(error._code),
            None if error is None else error._message, response._parameters, response._last)


def _serve_child(sock):
    """The parent's thread for one child; ends with it."""
    with sock:
        while True:
            try:
                what, args = _receive_object(sock)
            except (EOFError, OSError):
                return
            try:
                if what == "log":
                    _c._post(_CALL_LOG, args[0], args[1], _text(args[2], args[3]))
                    answer = None
                else:
                    values, decoupled = args
                    inputs = [Tensor(name, array) for name, array in values.pop("inputs")]
                    result = InferenceRequest(inputs=inputs, **values).exec(decoupled=decoupled)
                    answer = [_plain_response(r) for r in (result if decoupled else [result])]
                _send_object(sock, (True, answer))
            except Exception as err:
                _send_object(sock, (False, str(err)))


def _ask_parent(what, *args):
    try:
        with _parent_lock:
            _send_object(_parent, (what, args))
            ok, answer = _receive_object(_parent)
    except (EOFError, OSError) as err:
        raise TritonModelException(f"The process of the model is gone: {err}") from None
    if not ok:
        raise TritonModelException(answer)
    return answer


def _ask_parent_to_infer(request, decoupled):
    values = {"request_id": request._request_id, "correlation_id": request._correlation_id,
              "inputs": _plain_tensors(request._inputs), "requested_output_names": request._names,
              "model_name": request._model_name, "model_version": request._model_version,
              "flags": request._flags, "timeout": request._timeout,
              "parameters": json.loads(request._parameters)}
    answers = [([Tensor(name, array) for name, array in outputs], *rest)
               for outputs, *rest in _ask_parent("infer", values, decoupled)]
    if not decoupled:
        return _response_of(answers[0])
    iterator = ResponseIterator(0, None)
    iterator._responses = [_response_of(a) for a in answers]
    iterator._done = True
    return iterator


def _before_fork():
    _fork.pair = socket.socketpair()


def _after_fork_in_parent():
    ours, childs = _fork.pair
    childs.close()
    threading.Thread(target=_serve_child, args=(ours,), daemon=True).start()


def _after_fork_in_child():
    global _parent, _parent_lock
    ours, _parent = _fork.pair
    ours.close()
    _parent_lock = threading.Lock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent,
                    after_in_child=_after_fork_in_child)


# ---- models ----

def load_model(model_name, config="", files=None):
    """Loads a model in the server; see the model repository extension for `config` and `files`."""
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and "
            "file contents")
    body = _text(model_name, config) + struct.pack("<I", len(files or ()))
    for path, content in (files or {}).items():
        body += _text(path, bytes(content))
    try:
        _c._call(_CALL_LOAD, 0, 0, body)
    except TritonModelException as err:
        raise TritonModelException(f"Failed to load model: {err}") from None


def unload_model(model_name, unload_dependents=False):
    try:
        _c._call(_CALL_UNLOAD, int(bool(unload_dependents)), 0, _text(model_name))
    except TritonModelException as err:
        raise TritonModelException(f"Failed to unload model: {err}") from None


def is_model_ready(model_name, model_version=""):
    try:
        return _c._call(_CALL_IS_READY, 0, 0, _text(model_name, model_version)) != 0
    except TritonModelException as err:
        raise TritonModelException(f"Failed to check model readiness: {err}") from None


# ---- log ----

def _log(level, message, depth=2):
    if not isinstance(message, str):
        raise TypeError("log(): incompatible function arguments. message is a str, "
                        f"not {type(message)}")
    frame = sys._getframe(depth)
    try:
        if _parent is not None:
            _ask_parent("log", int(level), frame.f_lineno, frame.f_code.co_filename, message)
        elif _c._is_child():
            sys.stderr.write(message + "\n")
        else:
            _c._post(_CALL_LOG, int(level), frame.f_lineno,
                     _text(frame.f_code.co_filename, message))
    except TritonModelException:
        sys.stderr.write(message + "\n")


class Logger:
    """Messages in the server's log, with the model's file and line."""

    class LogLevel:
        INFO = _Named("LogLevel", "INFO", 0)
        WARNING = _Named("LogLevel", "WARNING", 1)
        ERROR = _Named("LogLevel", "ERROR", 2)
        VERBOSE = _Named("LogLevel", "VERBOSE", 3)

    INFO, WARNING, ERROR, VERBOSE = (LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR,
                                     LogLevel.VERBOSE)

    @staticmethod
    def log(message, level=LogLevel.INFO):
        if not isinstance(level, _Named):
            raise TypeError("log(): incompatible function arguments. level is one of "
                            f"Logger.LogLevel, not {type(level)}")
        _log(level, message)

    @staticmethod
    def log_info(message):
        _log(0, message)

    @staticmethod
    def log_warn(message):
        _log(1, message)

    @staticmethod
    def log_error(message):
        _log(2, message)

    @staticmethod
    def log_verbose(message):
        _log(3, message)


# ---- metrics ----

def _bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


class Metric:
    """One time series of a family."""

    def __init__(self, family, labels, buckets):
        body = _text(labels) + struct.pack("<I", len(buckets))
        body += struct.pack(f"<{len(buckets)}d", *buckets)
        try:
            self._handle = _c._call(_CALL_METRIC_NEW, family, 0, body)
        except TritonModelException as err:
            raise TritonModelException(f"Error when creating Metric: {err}") from None

    def _do(self, what, call, value):
        try:
            if not self._handle:
                raise TritonModelException(
                    "Invalid metric operation as the corresponding 'MetricFamily' has been "
                    "deleted. The 'MetricFamily' object should be deleted AFTER its corresponding "
                    "'Metric' objects have been deleted.")
            return _c._call(call, self._handle, _bits(value))
        except TritonModelException as err:
            raise TritonModelException(f"Failed to {what} metric value: {err}") from None

    def increment(self, value):
        self._do("increment", _CALL_METRIC_INCREMENT, value)

    def set(self, value):
        self._do("set", _CALL_METRIC_SET, value)

    def observe(self, value):
        self._do("observe", _CALL_METRIC_OBSERVE, value)

    def value(self):
        bits = self._do("get", _CALL_METRIC_VALUE, 0.0)
        return struct.unpack("<d", struct.pack("<Q", bits))[0]

    def _clear(self):
        handle, self._handle = self._handle, 0
        if handle:
            _c._call(_CALL_METRIC_DELETE, handle, 0)


class MetricFamily:
    """Metrics of one name; they live as long as this object."""

    COUNTER = _Named("MetricKind", "COUNTER", 0)
    GAUGE = _Named("MetricKind", "GAUGE", 1)
    HISTOGRAM = _Named("MetricKind", "HISTOGRAM", 2)

    def __init__(self, name, description, kind):
        self._metrics = []
        self._handle = 0
        self._kind = int(kind)
        try:
            self._handle = _c._call(_CALL_FAMILY_NEW, self._kind, 0, _text(name, description))
        except TritonModelException as err:
            raise TritonModelException(f"Error when creating MetricFamily: {err}") from None

    def Metric(self, labels=None, buckets=None):
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        text = json.dumps({} if labels is None else labels)
        histogram = self._kind == MetricFamily.HISTOGRAM
        if buckets is not None:
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            if not histogram:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif histogram:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        metric = Metric(self._handle, text, buckets or [])
        self._metrics.append(metric)
        return metric

    def __del__(self):
        try:
            for metric in getattr(self, "_metrics", ()):
                metric._clear()
            if self._handle:
                _c._call(_CALL_FAMILY_DELETE, self._handle, 0)
        except Exception:
            pass  # the server deletes what is left with the model


# ---- completing a configuration ----

class ModelConfig:
    """The configuration while auto_complete_config() runs."""

    def __init__(self, model_config):
        self._model_config = json.loads(model_config)

    def as_dict(self):
        return self._model_config

    def set_max_batch_size(self, max_batch_size):
        config = self._model_config
        if config["max_batch_size"] > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {config['max_batch_size']}, but in "
                f"auto-complete-config function for model '{config['name']}' specified "
                f"max_batch_size {max_batch_size}")
        config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        config = self._model_config
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but "
                    f"auto-complete-config function for model '{config['name']}' tries to set "
                    "scheduling_choice as 'dynamic_batching'")
        config.setdefault("dynamic_batching", {})

    def _check_tensor(self, kind, tensor, allowed, listed):
        model = self._model_config["name"]
        for key in tensor:
            if key not in allowed:
                raise ValueError(
                    f"{kind} '{tensor['name']}' in auto-complete-config function for model "
                    f"'{model}' contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} in auto-complete-config function for model '{model}' is "
                             "missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' in auto-complete-config function for "
                                 f"model '{model}' is missing '{key}' property.")

    def _merge(self, kind, tensor):
        model, name = self._model_config["name"], tensor["name"]
        known = _by_name(self._model_config[kind], name)
        if known is None:
            self._model_config[kind].append(tensor)
            return
        if known["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype "
                f"{known['data_type']} for {kind} '{name}', model provides {tensor['data_type']}")
        for key in ("dims", "optional"):
            have, new = known.get(key), tensor.get(key)
            given = bool(have) if key == "dims" else "optional" in known and "optional" in tensor
            if given and have != new:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects {key} {new} but the "
                    f"model configuration specifies {key} {have}")
        known["data_type"] = tensor["data_type"]
        known["dims"] = tensor["dims"]
        if "optional" in tensor:
            known["optional"] = tensor["optional"]

    def add_input(self, input):
        self._check_tensor("input", input, ("name", "data_type", "dims", "optional"),
                           "'name', 'data_type', 'dims' and 'optional'")
        self._merge("input", input)

    def add_output(self, output):
        self._check_tensor("output", output, ("name", "data_type", "dims"),
                           "'name', 'data_type' and 'dims'")
        self._merge("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict):
        config = self._model_config
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError("model transaction property in auto-complete-config function for "
                                 f"model '{config['name']}' contains property other than "
                                 "'decoupled'.")
        policy = config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            wanted = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", wanted) != wanted:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model "
                    f"'{config['name']}', which is already set to '{policy['decoupled']}'.")
            policy["decoupled"] = wanted


class _SharedMemory:
    """What is left of the model's part of the shared memory."""

    @staticmethod
    def free_memory():
        return _c._free_memory()


_c.shared_memory = _SharedMemory()

# The classes are found under the name of the C module too, where Triton has them.
for _name in ("TritonError", "PreferredMemory", "InferenceTrace", "InferenceRequest",
              "InferenceResponse", "InferenceResponseSender", "ResponseIterator", "Logger",
              "Metric", "MetricFamily", "load_model", "unload_model", "is_model_ready",
              "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU"):
    setattr(_c, _name, globals()[_name])
del _name
_c._bind(_make_request, np)
