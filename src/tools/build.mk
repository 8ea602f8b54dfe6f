# SPDX-License-Identifier: Apache-2.0
# `nereid top`, `nereid bench serve` and `nereid client` speak HTTP through libevent, where that is; the other verbs need no library.
ifneq ($(HAVE_EVENT),)
$(B)/obj/tools/top.o $(B)/obj/tools/load/http_client.o: NRD_CFLAGS += -DNRD_HAVE_EVENT
tools_LIBS := -levent
endif
$(B)/obj/tools/nereid.o: NRD_CFLAGS += $(if $(FEATURES),-DNRD_FEATURES_CHOSEN) $(if $(HAVE_TLS),-DNRD_HAVE_TLS) $(if $(PYTHON_INCLUDE),-DNRD_HAVE_PYTHON) \
    $(if $(HAVE_REDIS),-DNRD_HAVE_REDIS) $(if $(HAVE_CLOUD),-DNRD_HAVE_CLOUD) $(if $(HAVE_HUB),-DNRD_HAVE_HUB) \
    $(if $(HAVE_SOUND),-DNRD_HAVE_SOUND) $(if $(HAVE_IMAGE),-DNRD_HAVE_IMAGE) $(if $(HAVE_GRPC),-DNRD_HAVE_GRPC)
# It tells what is in the build, so it is made again when that changes.
$(call remember,$(B)/obj/.features,$(if $(FEATURES),chosen) $(filter-out cuda,$(features_in)))
$(B)/obj/tools/nereid.o: $(B)/obj/.features

# nereid_grpc.so: gRPC for `nereid bench serve`, opened only with --protocol grpc. Built where the C-core library is.
OBJ_tools_plugin := $(call obj_of,tools/load/plugin)
OBJ_tools := $(filter-out $(OBJ_tools_plugin),$(OBJ_tools))
$(OBJ_tools_plugin): | $(PROTO_C)
$(B)/lib/nereid_grpc.so: $(OBJ_tools_plugin) $(addprefix $(B)/obj/gen/,grpc_service.pb-c.o model_config.pb-c.o) src/tools/load/plugin/grpc.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -lgrpc -lgpr -lprotobuf-c $(LIBS_base) \
	    -Wl,--version-script=src/tools/load/plugin/grpc.map
