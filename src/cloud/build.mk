# SPDX-License-Identifier: Apache-2.0
# nereid_cloud.so: model repositories in S3, GCS and Azure, opened by the core only when one is named.
# Built where libcurl, expat and OpenSSL are.
HAVE_CLOUD := $(and $(call want,cloud),$(HAVE_SERVER),$(call pkg,libcurl),$(call pkg,expat),$(call pkg,libcrypto))
OBJ_cloud := $(call obj_of,cloud) $(call obj_of,net)
$(B)/lib/nereid_cloud.so: $(OBJ_cloud) $(OBJ_base) src/cloud/cloud.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -lcurl -lexpat -lcrypto $(LIBS_base) \
	    -Wl,--version-script=src/cloud/cloud.map
