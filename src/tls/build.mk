# SPDX-License-Identifier: Apache-2.0
# nereid_tls.so: TLS for the programs, opened by them only when an option asks for it. Built where
# OpenSSL and libevent's part for it are.
HAVE_TLS := $(and $(call want,tls),$(HAVE_EVENT),$(call pkg,libssl),$(call pkg,libcrypto),$(call pkg,libevent_openssl))
OBJ_tls := $(B)/obj/tls/tls.o
OBJ_tls_plugin := $(call obj_of,tls/plugin)
$(B)/lib/nereid_tls.so: $(OBJ_tls_plugin) src/tls/plugin/tls.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(OBJ_tls_plugin) $(NRD_LDFLAGS) $(LDFLAGS) -levent_openssl -levent -lssl -lcrypto \
	    -Wl,--version-script=src/tls/plugin/tls.map
