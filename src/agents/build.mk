# SPDX-License-Identifier: Apache-2.0
# Repository agents: build/repoagents/<name>/libtritonrepoagent_<name>.so, one folder each. Core
# functions are taken from the server that opens them.
AGENTS := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/agents/*/*.c)))))
AGENT_LIBS := $(foreach a,$(AGENTS),$(B)/repoagents/$(a)/libtritonrepoagent_$(a).so)
define agent_rule
$(B)/repoagents/$(1)/libtritonrepoagent_$(1).so: $$(OBJ_base) $$(call obj_of,agents/$(1)) $(B)/obj/backends/util/error.o src/agents/libtritonrepoagent.map \
        $(B)/lib/libtritonserver.so
	$$(link)
	$$(Q)$$(CC) -shared -o $$@ $$(filter %.o,$$^) $$(NRD_LDFLAGS) $$(LDFLAGS) -L$(B)/lib -ltritonserver $$(LIBS_base) \
	    -Wl,--version-script=src/agents/libtritonrepoagent.map -Wl,-rpath,'$$$$ORIGIN/../../lib' \
	    -Wl,-soname,libtritonrepoagent_$(1).so
endef
$(foreach a,$(AGENTS),$(eval $(call agent_rule,$(a))))
server: $(AGENT_LIBS)
