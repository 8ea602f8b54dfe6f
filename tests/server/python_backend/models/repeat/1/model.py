# SPDX-License-Identifier: Apache-2.0
"""Sends N responses from a thread. HOW: "error" in the middle, "drop" the sender, "raise", "return"
a value, "late" final flag with the last response, "two" finals, "until" cancelled, "none"."""
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(i):
    return pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([i], np.int32))])


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            how = pb_utils.get_input_tensor_by_name(request, "HOW")
            how = how.as_numpy()[0].decode() if how is not None else ""
            if how == "raise":
                raise ValueError("no luck")
            if how == "none":
                continue
            sender = request.get_response_sender()
            if how == "return":
                sender.send(flags=FINAL)
                return [response(0)]
            if how == "two":
                sender.send(response(1), FINAL)
                sender.send(response(2), FINAL)
            thread = threading.Thread(target=self.work, args=(sender, n, how))
            self.threads.append(thread)
            thread.start()
        return None

    def work(self, sender, n, how):
        for i in range(n):
            if how == "until":
                sender.send(response(i))
                print("repeat has begun", flush=True)
                while not sender.is_cancelled():
                    time.sleep(0.005)
                print("repeat saw the cancellation", flush=True)
                error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=error), FINAL)
                return
            if how == "error" and i == 1:
                error = pb_utils.TritonError("one is bad", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error))
                continue
            sender.send(response(i), FINAL if how == "late" and i == n - 1 else 0)
        if how not in ("late", "drop"):
            sender.send(flags=FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
