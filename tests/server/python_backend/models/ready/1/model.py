# SPDX-License-Identifier: Apache-2.0
"""Ready while X was not negative; asked beside a running execute."""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.last = 0.0

    def is_ready(self):
        if self.last == -2:
            raise ValueError("cannot say")
        return self.last >= 0

    def execute(self, requests):
        for r in requests:
            self.last = float(r.inputs()[0].as_numpy()[0])
            if self.last == 7:
                time.sleep(2)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())])
                for r in requests]
