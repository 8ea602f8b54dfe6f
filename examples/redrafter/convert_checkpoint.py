#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder and a ReDrafter (`--drafter_model_dir`) become a checkpoint: `nereid convert`."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

nereid_programs.timed("converting checkpoints", "convert", *sys.argv[1:])
