# SPDX-License-Identifier: Apache-2.0
# The gRPC front end: only where the gRPC C-core library is (pkg-config: grpc). Included before the
# rules of the artifacts; adds to what tritonserver and the front ends' tests link.

ifeq ($(HAVE_GRPC),)
OBJ_frontends := $(filter-out $(B)/obj/frontends/grpc/%,$(OBJ_frontends))
else
grpc_PROTO := grpc_service health model_config
grpc_PROTO_OBJ := $(patsubst %,$(B)/obj/gen/%.pb-c.o,$(grpc_PROTO))
OBJ_frontends += $(grpc_PROTO_OBJ)
frontends_LIBS := -lgrpc -lgpr -lprotobuf-c

$(grpc_PROTO_OBJ): | $(PROTO_C)
# What server reflection tells: the descriptors of all messages, inside the program.
$(B)/gen/descriptors.pb: $(PROTO_SRC)
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=protos --descriptor_set_out=$@ $^
$(B)/obj/frontends/grpc/reflection.o: $(B)/gen/descriptors.pb
$(B)/obj/frontends/grpc/reflection.o: grpc_CFLAGS += -DNRD_GRPC_DESCRIPTORS='"$(abspath $(B)/gen/descriptors.pb)"'
$(B)/obj/frontends/grpc/%.o: src/frontends/grpc/%.c $(FLAGS_FILE) | $(PROTO_C)
	$(call compile,$(grpc_CFLAGS))
$(B)/obj/frontends/%.o: src/frontends/%.c $(FLAGS_FILE)
	$(call compile,$(grpc_CFLAGS))
endif

-include tests/load/build.mk
