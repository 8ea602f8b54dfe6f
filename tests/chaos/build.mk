# SPDX-License-Identifier: Apache-2.0
# What moves the wall clock of a running server: preloaded by tests/chaos.
$(B)/tests/chaos/libclock.so: tests/chaos/clock.c $(FLAGS_FILE)
	$(link)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -fPIC -O1 -g -fvisibility=hidden $(WARN) -shared -o $@ $< -ldl
test-backends: $(B)/tests/chaos/libclock.so
.PHONY: chaos
SECONDS ?= 60
chaos: all test-backends venv ## Mixed load while things go wrong (SECONDS=3600 CHAOS_ARGS="--workers 2 --pace 0.1" BUILD=asan)
	$(Q)NEREID_BUILD=$(abspath $(B)) $(VENV)/bin/python tests/chaos/chaos.py $(SECONDS) $(CHAOS_ARGS)
