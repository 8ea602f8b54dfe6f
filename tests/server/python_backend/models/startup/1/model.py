# SPDX-License-Identifier: Apache-2.0
"""Fails in the way that its parameter `how` says."""
import json
import os
import signal
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        how = config["parameters"]["how"]["string_value"]
        if how == "raise":
            raise RuntimeError("cannot find my weights")
        if how == "exit":
            raise SystemExit(3)
        if how == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
        self.how = how

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())])
                for r in requests]

    def finalize(self):
        if self.how == "finalize":
            raise RuntimeError("did not want to go")
