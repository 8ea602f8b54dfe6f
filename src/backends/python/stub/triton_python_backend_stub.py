# SPDX-License-Identifier: Apache-2.0
"""One model instance: runs model.py and talks to the server that started this process.

    python3 triton_python_backend_stub.py MEMORY_FD SOCKET_FD MODEL_FILE VERSION BACKEND_FOLDER NAME

MODEL_FILE is <model>/<version>/model.py, or BACKEND_FOLDER/model.py when that is not "-": then the
backend brings the code for all its models. Started and ended by the server only.
"""
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_UTILS = os.path.join(_HERE, "triton_python_backend_utils.py")

# Commands of the server, as in ipc.h.
HELLO, AUTOCOMPLETE, INITIALIZE, EXECUTE, FINALIZE = 1, 2, 3, 4, 5


def describe(error):
    """An exception as clients of the Python backend know it: the message, then the functions it
    came through, innermost first. Frames of the backend are not the model's business."""
    kind = type(error)
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"
    text = f"{kind.__name__}: {text or '<EMPTY MESSAGE>'}"
    for note in getattr(error, "__notes__", ()):
        text += f"\n{note}"
    trace = error.__traceback__
    if trace is None:
        return text
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame, lines = trace.tb_frame, []
    while frame is not None and frame.f_code.co_filename != __file__:
        code = frame.f_code
        if code.co_filename != _UTILS:
            lines.append(f"  {code.co_filename}({frame.f_lineno}): {code.co_name}\n")
        frame = frame.f_back
    return text + "\n\nAt:\n" + "".join(lines) if lines else text


class Refused(Exception):
    """A rule of the backend was broken; the text is all there is to say."""


class Stub:
    def __init__(self, model_file, version, backend_folder, name, c, utils):
        self.model_file, self.version, self.backend_folder = model_file, version, backend_folder
        self.name = name
        self.c, self.utils = c, utils
        self.model = None
        self.loop = None
        self.background = set()

    # ---- the model's module ----

    def load(self):
        if self.backend_folder != "-":
            module, folders = "model", [self.backend_folder]
        else:
            if not os.path.exists(self.model_file):
                raise Refused(f"Python model file not found in '{self.model_file}'")
            folder, base = os.path.split(self.model_file)
            if not base.endswith(".py"):
                raise Refused(f"Model name must end with '.py'. Model name is \"{base}\".")
            # The version is a package: "1.model" can import its neighbours with a leading dot.
            module, folders = f"{self.version}.{base[:-3]}", [folder, os.path.dirname(folder)]
        sys.path += folders + [_HERE]
        self.utils._model_dir = os.path.dirname(self.model_file)
        __import__(module)
        return sys.modules[module].TritonPythonModel

    def autocomplete(self, config):
        cls = self.load()
        config = self.utils.ModelConfig(config)
        if hasattr(cls, "auto_complete_config"):
            config = cls.auto_complete_config(config)
        if not isinstance(config, self.utils.ModelConfig):
            raise Refused(f"auto_complete_config function in model '{self.name}' must return a "
                          "valid pb.ModelConfig object.")
        return json.dumps(config._model_config)

    def initialize(self, text):
        args = json.loads(text)
        self.utils._decoupled = args.pop("decoupled")
        self.c._set_remote(args.pop("remote"))
        cls = self.load()
        self.model = cls()
        if hasattr(self.model, "initialize"):
            self.model.initialize(args)
        self.utils._phase = "running"
        if not hasattr(self.model, "is_ready"):
            return ""
        import threading
        threading.Thread(target=self.answer_readiness, daemon=True).start()
        return "1"

    def finalize(self):
        initialized = self.utils._phase == "running"
        self.utils._phase = "finalizing"
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
        if initialized and hasattr(self.model, "finalize"):
            try:
                self.model.finalize()
            except Exception as err:
                self.log(0, describe(err))
        self.model = None

    def log(self, level, message):
        self.utils._log(level, message)

    # ---- readiness: beside a running execute ----

    def answer_readiness(self):
        while True:
            self.c._aux_wait()
            try:
                ready = self.model.is_ready()
                if self.is_coroutine(ready):
                    ready = self.run(ready)
                if not isinstance(ready, bool):
                    raise Refused("is_ready() must return a boolean value")
                self.c._aux_reply(False, "1" if ready else "0")
            except Refused as err:
                self.c._aux_reply(True, str(err))
            except Exception as err:
                self.c._aux_reply(True, describe(err))

    # ---- execute ----

    @staticmethod
    def is_coroutine(value):
        if not hasattr(value, "send"):
            return False
        import asyncio
        return asyncio.iscoroutine(value)

    def start(self, coroutine):
        import asyncio
        if self.loop is None:
            import threading
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine):
        return self.start(coroutine).result()

    def run_in_background(self, coroutine, requests):
        future = self.start(coroutine)
        self.background.add(future)

        def done(f):
            self.background.discard(f)
            error = None if f.cancelled() else f.exception()
            if error is not None:
                import traceback
                text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                self.log(2, text)
                self.send_error(requests, describe(error))
        future.add_done_callback(done)

    def send_error(self, requests, text):
        """Ends what a coroutine has left open when it died."""
        utils = self.utils
        message = f"Failed to process the request(s) for model '{self.name}', message: {text}"
        for request in requests:
            sender = request.get_response_sender()
            if not sender._closed:
                response = utils.InferenceResponse(error=utils.TritonError(message))
                sender.send(response, flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def check(self, requests, responses):
        """The responses as a list, once the rules of a return value hold."""
        if responses is None:
            return None
        if self.utils._decoupled:
            raise Refused(f"Python model '{self.name}' is using the decoupled mode and the execute "
                          "function must return None.")
        if not isinstance(responses, list):
            raise Refused("Expected a list in the execute return, found type "
                          f"'{type(responses)}'.")
        if len(responses) != len(requests):
            raise Refused(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(responses)}\n")
        final = self.utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request, response in zip(requests, responses):
            if response is None:
                continue
            if request._release == self.utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                raise Refused("Expected a None object in the execute function return list for "
                              f"reschduled request, found type '{type(response)}'.")
            if not isinstance(response, self.utils.InferenceResponse):
                raise Refused("Expected an 'InferenceResponse' object in the execute function "
                              f"return list, found type '{type(response)}'.")
            if request._sender is not None:
                request._sender._count(response, final)
        return responses

    def execute(self, requests):
        responses, error = None, None
        try:
            if not hasattr(self.model, "execute"):
                raise Refused(f"Python model {self.model_file} does not implement `execute` "
                              "method.")
            responses = self.model.execute(requests)
            if responses is not None and self.is_coroutine(responses):
                if self.utils._decoupled:
                    self.run_in_background(responses, requests)
                    responses = None
                    for request in requests:
                        request.get_response_sender()
                else:
                    responses = self.run(responses)
            responses = self.check(requests, responses)
            self.reply(requests, responses)
            return
        except (Refused, self.utils.TritonModelException) as err:
            error = str(err) if isinstance(err, Refused) or self.is_ours(err) else describe(err)
        except BaseException as err:  # sys.exit() in a model too
            error = describe(err)
        message = f"Failed to process the request(s) for model '{self.name}', message: {error}"
        self.log(2, message)
        for request in requests:
            if request._sender is not None:
                request._sender._close()
        self.c._reply(EXECUTE, True, message)

    @staticmethod
    def is_ours(err):
        """Raised by the backend itself after execute() had returned."""
        trace = err.__traceback__
        while trace.tb_next is not None:
            trace = trace.tb_next
        frame = trace.tb_frame
        while frame is not None:
            if frame.f_code.co_filename == __file__:
                return frame.f_code.co_name in ("check", "reply")
            frame = frame.f_back
        return False

    def reply(self, requests, responses):
        states = []
        reschedule = self.utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        for request in requests:
            taken = request._sender is not None
            if request._release == reschedule and taken:
                request._sender._close()
            states.append((2 if request._release == reschedule else 1) | (256 if taken else 0))
        self.c._reply_execute(states, responses if responses is not None else [None] * len(requests),
                              [request._names for request in requests])

    # ---- commands ----

    def answer(self, command, work, *args):
        try:
            text = work(*args)
        except Refused as err:
            self.c._reply(command, True, str(err))
        except BaseException as err:  # sys.exit() in a model too
            self.c._reply(command, True, describe(err))
        else:
            self.c._reply(command, False, text or "")

    def serve(self):
        while True:
            command, payload = self.c._wait()
            if command == EXECUTE:
                self.execute(payload)
            elif command == INITIALIZE:
                self.answer(command, self.initialize, payload)
            elif command == AUTOCOMPLETE:
                self.answer(command, self.autocomplete, payload)
            elif command == FINALIZE:
                self.answer(command, self.finalize)
                return
            payload = None


def main():
    memory, sock, model_file, version, backend_folder, name = sys.argv[1:7]
    sys.argv[:] = [""]
    sys.path[0:1] = []  # this folder comes last, as in an embedded interpreter
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    for fd in os.listdir("/proc/self/fd"):  # what the server has left open by accident
        if fd not in ("0", "1", "2", memory, sock):
            try:
                os.close(int(fd))
            except OSError:
                pass
    sys.path.append(_HERE)
    import c_python_backend_utils as c
    c._connect(int(memory), int(sock))
    try:
        import triton_python_backend_utils as utils
    except BaseException as err:  # no NumPy, most likely
        c._reply(HELLO, True, describe(err))
        raise SystemExit(1)
    sys.path.pop()
    # The module `nereid` of this tree, where the interpreter has none of its own: models may `import nereid`.
    ours = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "python")
    if os.path.isdir(os.path.join(ours, "nereid")):
        sys.path.append(ours)
    stub = Stub(model_file, version, backend_folder, name, c, utils)
    c._reply(HELLO, False, sys.version.split()[0])
    stub.serve()


if __name__ == "__main__":
    main()
