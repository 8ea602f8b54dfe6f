# SPDX-License-Identifier: Apache-2.0
"""Runs the code that comes in. It may leave `result` (a text), `response` (what to answer with) or
`answer` (what execute() returns)."""
import json  # noqa: F401
import os  # noqa: F401

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            scope = {"pb_utils": pb_utils, "np": np, "self": self, "request": request,
                     "requests": requests, "json": json, "os": os}
            exec(compile(code, "code", "exec"), scope)
            if "answer" in scope:
                return scope["answer"]
            if "response" in scope:
                responses.append(scope["response"])
                continue
            text = np.array([str(scope.get("result", ""))], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)]))
        return responses

    def finalize(self):
        print("lab is finalized", flush=True)
