#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder becomes a checkpoint: `nereid convert`, which finds the family in config.json."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

nereid_programs.convert_checkpoint(sys.argv[1:])
