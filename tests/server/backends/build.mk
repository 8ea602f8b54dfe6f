# SPDX-License-Identifier: Apache-2.0
# Backends that only tests use: build/tests/backends/<name>/libtriton_<name>.so.
TEST_BACKENDS := $(notdir $(patsubst %/,%,$(dir $(wildcard tests/server/backends/*/*.c))))
TEST_BACKEND_LIBS := $(foreach b,$(TEST_BACKENDS),$(B)/tests/backends/$(b)/libtriton_$(b).so)
$(B)/tests/backends/%.o: tests/server/backends/%.c $(FLAGS_FILE)
	$(call compile,)
define test_backend_rule
$(B)/tests/backends/$(1)/libtriton_$(1).so: $(patsubst tests/server/backends/%.c,$(B)/tests/backends/%.o,$(wildcard tests/server/backends/$(1)/*.c)) \
        $(OBJ_base) $(call obj_of,backends/util) $(B)/lib/libtritonserver.so
	$$(link)
	$$(Q)$$(CC) -shared -o $$@ $$(filter %.o,$$^) $$(NRD_LDFLAGS) $$(LDFLAGS) -L$(B)/lib -ltritonserver $$(LIBS_base) \
	    -Wl,-rpath,$(abspath $(B)/lib) -Wl,-soname,libtriton_$(1).so
endef
$(foreach b,$(TEST_BACKENDS),$(eval $(call test_backend_rule,$(b))))
.PHONY: test-backends
test-backends: $(TEST_BACKEND_LIBS) ## Build the backends that only tests use

# Agents and batching strategies for tests likewise, under build/tests/repoagents and .../batching.
TEST_AGENTS := $(notdir $(patsubst %/,%,$(dir $(wildcard tests/server/agents/*/*.c))))
TEST_STRATEGIES := $(notdir $(patsubst %/,%,$(dir $(wildcard tests/server/batching/*/*.c))))
define test_library_rule
$(1): $(patsubst tests/%.c,$(B)/tests/%.o,$(wildcard tests/server/$(2)/*.c)) $(OBJ_base) $(B)/lib/libtritonserver.so
	$$(link)
	$$(Q)$$(CC) -shared -o $$@ $$(filter %.o,$$^) $$(NRD_LDFLAGS) $$(LDFLAGS) -L$(B)/lib -ltritonserver $$(LIBS_base) \
	    -Wl,-rpath,$(abspath $(B)/lib)
test-backends: $(1)
endef
$(foreach a,$(TEST_AGENTS),$(eval $(call test_library_rule,$(B)/tests/repoagents/$(a)/libtritonrepoagent_$(a).so,agents/$(a))))
$(foreach s,$(TEST_STRATEGIES),$(eval $(call test_library_rule,$(B)/tests/batching/$(s)/batchstrategy.so,batching/$(s))))

# Devices that fail on demand, and that are of another interface: build/tests/devices/nereid_{faulty,stale}.so.
$(B)/tests/devices/faulty.o: tests/server/devices/faulty.c $(FLAGS_FILE)
	$(call compile,)
$(B)/tests/devices/stale_plugin.o: src/device/plugin/plugin.c $(FLAGS_FILE)
	$(call compile,-DNRD_DEVICE_ID='"0123456789abcdef"')
$(B)/tests/devices/nereid_faulty.so: $(B)/obj/device/plugin/plugin.o
$(B)/tests/devices/nereid_stale.so: $(B)/tests/devices/stale_plugin.o
$(B)/tests/devices/nereid_%.so: $(B)/tests/devices/faulty.o $(filter-out %/base/error.o,$(OBJ_base) $(OBJ_device))
	$(link)
	$(Q)$(CC) -shared -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) $(text_LIBS) $(LIBS_base)
test-backends: $(B)/tests/devices/nereid_faulty.so $(B)/tests/devices/nereid_stale.so
