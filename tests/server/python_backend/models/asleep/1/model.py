# SPDX-License-Identifier: Apache-2.0
"""async def execute that answers; the code of a request is the body of an async function."""
import asyncio
import textwrap

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.one(r) for r in requests])

    async def one(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        scope = {"pb_utils": pb_utils, "np": np, "asyncio": asyncio, "request": request}
        exec(compile("async def work():\n" + textwrap.indent(code, " "), "code", "exec"), scope)
        text = np.array([str(await scope["work"]())], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)])
