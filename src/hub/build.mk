# SPDX-License-Identifier: Apache-2.0
# nereid_hub.so: downloads of models by name, opened by `nereid` only when one is not in the cache. Built where
# libcurl and OpenSSL are.
HAVE_HUB := $(and $(call want,hub),$(call pkg,libcurl),$(call pkg,libcrypto))
OBJ_hub := $(filter-out $(B)/obj/hub/plugin/%,$(call obj_of,hub))
OBJ_hub_plugin := $(call obj_of,hub/plugin) $(call obj_of,net)
$(B)/lib/nereid_hub.so: $(OBJ_hub_plugin) $(OBJ_base) src/hub/plugin/hub.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -lcurl -lcrypto $(LIBS_base) \
	    -Wl,--version-script=src/hub/plugin/hub.map
