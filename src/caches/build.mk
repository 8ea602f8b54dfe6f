# SPDX-License-Identifier: Apache-2.0
# Response caches: build/caches/<name>/libtritoncache_<name>.so, one folder each. Core functions are
# taken from the server that opens them.
# `redis` is built where hiredis and OpenSSL are.
redis_CACHE_LIBS := -lhiredis -lssl -lcrypto
# What they share is caches/util.
CACHES := $(filter-out util $(if $(HAVE_REDIS),,redis),$(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/caches/*/*.c))))))
CACHE_LIBS := $(foreach c,$(CACHES),$(B)/caches/$(c)/libtritoncache_$(c).so)
define cache_rule
$(B)/caches/$(1)/libtritoncache_$(1).so: $$(OBJ_base) $$(call obj_of,caches/$(1)) $$(call obj_of,caches/util) $(B)/obj/backends/util/error.o src/caches/libtritoncache.map \
        $(B)/lib/libtritonserver.so
	$$(link)
	$$(Q)$$(CC) -shared -o $$@ $$(filter %.o,$$^) $$(NRD_LDFLAGS) $$(LDFLAGS) -L$(B)/lib -ltritonserver $$($(1)_CACHE_LIBS) $$(LIBS_base) \
	    -Wl,--version-script=src/caches/libtritoncache.map -Wl,-rpath,'$$$$ORIGIN/../../lib' \
	    -Wl,-soname,libtritoncache_$(1).so
endef
$(foreach c,$(CACHES),$(eval $(call cache_rule,$(c))))
server: $(CACHE_LIBS)
