# SPDX-License-Identifier: Apache-2.0
"""python -m nereid compat: what goes on PYTHONPATH for programs that import `tensorrt_llm`."""
import os
import sys

import nereid

HERE = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1:] == ["compat"]:
    print(os.pathsep.join([os.path.dirname(HERE), os.path.join(HERE, "compat")]))
elif sys.argv[1:] == ["version"]:
    print(nereid.version())
else:
    sys.exit("usage: python -m nereid compat|version")
