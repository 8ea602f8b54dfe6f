# SPDX-License-Identifier: Apache-2.0
# libFuzzer programs: `make fuzz T=seconds` runs each with its corpus (scripts/run_fuzz). They need clang.
#
# FUZZ_CC, FUZZ_LD   compiler, and what links (an engine in C++ needs clang++)
# FUZZ_SAN           options of the sanitizers, for compiling and linking
# FUZZ_ENGINE        what gives the program its main
# FUZZ_ONLY          programs by name, instead of all
# F                  folder of objects and programs
#
# All that is fuzzed lies in one archive, so that a program links what it uses and may bring its own
# form of the rest. Not in it: programs, what needs Python, and devices and engines, which read nothing
# from outside but what these rooms have checked.
T ?= 10
FUZZ_CC ?= $(firstword $(filter ccache,$(CC))) clang
FUZZ_LD ?= clang
FUZZ_SAN ?= -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_ENGINE ?= -fsanitize=fuzzer
F := build/fuzz
FUZZ_CFLAGS := -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -I$(B)/gen -DNRD_VERSION='"fuzz"' $(DEVICE_ID) $(FUZZ_SAN)

FUZZ_ROOMS := base formats text audio image guided model hub
ifneq ($(HAVE_SERVER),)
FUZZ_ROOMS += core frontends tls
endif
FUZZ_LEFT_OUT := src/device/cuda/% src/device/plugin/% src/frontends/main.c src/frontends/ui/% src/frontends/grpc/reflection.c src/tls/plugin/% src/hub/plugin/% src/audio/plugin/% \
                 $(if $(HAVE_IMAGE),,src/image/plugin/%) \
                 $(if $(HAVE_GRPC),,src/frontends/grpc/%)
FUZZ_C := $(filter-out $(FUZZ_LEFT_OUT),$(foreach r,$(FUZZ_ROOMS),$(call src_of,$(r)))) src/backends/python/ipc.c $(patsubst %,src/executor/ranks/%.c,mirror tcp wire)
FUZZ_OBJ := $(patsubst src/%.c,$(F)/obj/%.o,$(FUZZ_C)) \
            $(if $(HAVE_SERVER),$(patsubst $(B)/gen/%.c,$(F)/obj/gen/%.o,$(PROTO_C)))
FUZZ_LIBS := $(text_LIBS) $(if $(HAVE_SERVER),$(proto_LIBS) -levent -levent_pthreads -lz) $(if $(HAVE_GRPC),-lgrpc -lgpr) $(if $(HAVE_IMAGE),$(image_LIBS)) \
             $(LIBS_base)

# What only machines with these libraries can build.
FUZZ_NEEDS_PROTO := pbtext config
FUZZ_NEEDS_SERVER := batch chat embeddings forwarded http http_json multipart shm tensor_text traceparent
FUZZ_NEEDS_GRPC := grpc_decode
FUZZ_MISSING := $(if $(HAVE_PROTOBUFC),,$(FUZZ_NEEDS_PROTO)) $(if $(HAVE_SERVER),,$(FUZZ_NEEDS_SERVER)) \
                $(if $(HAVE_GRPC),,$(FUZZ_NEEDS_GRPC))
FUZZ_ALL := $(filter-out $(FUZZ_MISSING),$(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c))))
FUZZ_BIN := $(patsubst %,$(F)/bin/fuzz_%,$(or $(FUZZ_ONLY),$(FUZZ_ALL)))

$(call remember,$(F)/.flags,$(FUZZ_CC) $(FUZZ_CFLAGS) $(text_CFLAGS) $(grpc_CFLAGS))
define fuzz_compile
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) $(FUZZ_CFLAGS) $(text_CFLAGS) $(grpc_CFLAGS) -Itests -MMD -MP -c $< -o $@
endef
$(F)/obj/tests/%.o: tests/fuzz/%.c $(F)/.flags | $(PROTO_C)
	$(fuzz_compile)
$(F)/obj/gen/%.o: $(B)/gen/%.c $(F)/.flags
	$(fuzz_compile)
$(F)/obj/%.o: src/%.c $(F)/.flags | $(PROTO_C)
	$(fuzz_compile)
$(F)/libfuzzed.a: $(FUZZ_OBJ)
	@rm -f $@
	$(Q)ar rcsT $@ $^
$(F)/bin/%: $(F)/obj/tests/%.o $(F)/libfuzzed.a
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(FUZZ_LD) $(FUZZ_SAN) $(FUZZ_ENGINE) -o $@ $(filter %.o,$^) $(FUZZ_EXPORT) $(F)/libfuzzed.a -pthread $(FUZZ_LIBS) \
	    -Wl,-z,muldefs,--disable-new-dtags,-rpath,'$$ORIGIN/lib'

$(F)/obj/tests/fuzz_image.o: FUZZ_CFLAGS += $(if $(HAVE_IMAGE),-DNRD_HAVE_IMAGE)
# A whole server: what its backend calls is exported, also what nothing else calls.
$(F)/bin/fuzz_http: FUZZ_EXPORT = -rdynamic $(filter $(F)/obj/core/%,$(FUZZ_OBJ))
$(F)/bin/fuzz_http: | $(F)/bin/backends/identity/libtriton_identity.so
FUZZ_IDENTITY := $(patsubst src/%.c,$(F)/obj/%.o,$(wildcard src/backends/identity/*.c))
$(FUZZ_IDENTITY): FUZZ_CFLAGS += -fPIC
$(F)/bin/backends/identity/libtriton_identity.so: $(FUZZ_IDENTITY)
	@mkdir -p $(@D)
	$(Q)$(FUZZ_LD) $(FUZZ_SAN) -shared -o $@ $^

.PHONY: fuzz fuzz-build
fuzz-build: $(FUZZ_BIN)
fuzz: $(FUZZ_BIN) ## Fuzz every parser for T seconds each (libFuzzer; FUZZ_ONLY="json http")
	@scripts/run_fuzz $(T) $^
