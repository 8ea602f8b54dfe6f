# SPDX-License-Identifier: Apache-2.0
"""async def execute of a decoupled model; a negative N raises."""
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            if n < 0:
                raise ValueError(f"{n} is negative")
            sender = request.get_response_sender()
            for i in range(n):
                await asyncio.sleep(0.01)
                tensor = pb_utils.Tensor("I", np.array([i], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
