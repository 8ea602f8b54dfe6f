#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The vision tower of a Hugging Face folder for the model multimodal_encoders: `nereid build_multimodal_engine`."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

nereid_programs.build_multimodal("multimodal_encoder", sys.argv[1:])
