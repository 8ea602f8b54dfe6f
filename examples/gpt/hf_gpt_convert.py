#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 as the guides of v0.5 to v0.8 convert it: `nereid hf_gpt_convert`, and `nereid quantize` for SmoothQuant and an int8 cache."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

nereid_programs.hf_gpt_convert(sys.argv[1:])
