# SPDX-License-Identifier: Apache-2.0
"""No config.pbtxt is needed for it."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_input({"name": "Z", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * np.float32(2))]) for r in requests]
