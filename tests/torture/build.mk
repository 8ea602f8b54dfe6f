# SPDX-License-Identifier: Apache-2.0
# What makes a running server's calls fail: preloaded by tests/torture.
$(B)/tests/torture/libfaults.so: tests/torture/faults.c $(FLAGS_FILE)
	$(link)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -fPIC -O1 -g -fvisibility=hidden $(WARN) -shared -o $@ $< -ldl
test-backends: $(B)/tests/torture/libfaults.so
.PHONY: torture
torture: all test-backends venv ## Every call of the server's own code fails once, over a set of requests (BUILD=asan too)
	$(Q)NEREID_BUILD=$(abspath $(B)) build/venv/bin/python tests/torture/torture.py $(TORTURE_ARGS)
