#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter of PEFT becomes the arrays that requests carry: `nereid hf_lora_convert`."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import nereid_programs  # noqa: E402

nereid_programs.become("hf_lora_convert", *sys.argv[1:])
