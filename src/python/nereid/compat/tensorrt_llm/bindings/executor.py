# SPDX-License-Identifier: Apache-2.0
from nereid.executor import *  # noqa: F401,F403
