# SPDX-License-Identifier: Apache-2.0
"""Comes back N times before it answers."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.rounds = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            if self.rounds < n:
                self.rounds += 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            tensor = pb_utils.Tensor("ROUNDS", np.array([self.rounds], np.int32))
            self.rounds = 0
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
