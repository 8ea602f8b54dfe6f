# SPDX-License-Identifier: Apache-2.0
# Nereid. `make help` lists the targets; every source file is found by its folder (LAYOUT: rooms),
# so adding a file needs no change here.

SHELL := /bin/bash
BUILD ?= release
# A compiler cache, where there is one, serves every build folder and checkout.
ifeq ($(origin CC),default)
CC := $(if $(shell command -v ccache 2>/dev/null),ccache )cc
endif
export CCACHE_NOHASHDIR := 1
PYTHON ?= python3
NVCC ?= $(shell command -v nvcc 2>/dev/null)
V ?= 0
Q := $(if $(filter 1,$(V)),,@)

ifeq ($(BUILD),release)
B := build
else
B := build/$(BUILD)
endif

PKG_CONFIG ?= pkg-config
ifeq ($(BUILD),arm64)
CC := $(firstword $(filter ccache,$(CC))) aarch64-linux-gnu-gcc
PKG_CONFIG := false
endif
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
# What makes a fault in a parser harder to use. `make HARDEN=` builds without.
HARDEN ?= -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong $(HARDEN_$(ARCH))
HARDEN_x86_64 := -fcf-protection -fstack-clash-protection
HARDEN_aarch64 := -mbranch-protection=standard -fstack-clash-protection

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
ifdef WERROR
WARN += -Werror
endif
OPT_release := -O2 -g -fno-omit-frame-pointer $(HARDEN)
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT_debug := -O0 -g3 -DNRD_DEBUG
# For ARM from another machine: the engine, which needs no library (see the target `arm64-test`).
OPT_arm64 := $(OPT_release)
OPT := $(OPT_$(BUILD))

# $(call remember,FILE,TEXT) keeps TEXT in FILE and writes it only when it is another text: what
# depends on FILE is then made again.
remember = $(shell mkdir -p $(dir $(1)); t='$(subst ','\'',$(2))'; \
    [ "$$(cat $(1) 2>/dev/null)" = "$$t" ] || printf '%s\n' "$$t" > $(1))
hash := \#

# The one place: `scripts/check_version --write` carries it to the files that cannot ask.
NRD_VERSION := 0.2.0
$(call remember,$(B)/gen/commit.h,$(hash)define NRD_COMMIT "$(shell git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)")

# CFLAGS, CPPFLAGS and LDFLAGS are the user's, from the environment or the command line, and come
# after these.
# Equal sources give equal bytes: where the tree lies is not in what is built (see scripts/check_reproducible).
PREFIX_MAP := -ffile-prefix-map=$(CURDIR)=.
NRD_CFLAGS := -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off $(PREFIX_MAP) $(WARN) $(OPT) \
              -Isrc -Iinclude -I$(B)/gen -DNRD_VERSION='"$(NRD_VERSION)"'
NRD_LDFLAGS := $(OPT) -pthread -Wl,--as-needed -Wl,-z,relro,-z,now
FLAGS_FILE := $(B)/obj/.flags
LIBS_base := -lm -ldl -lpthread

# ---- optional libraries: found at build time, `nereid --version` tells which are in ----
pkg = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes)
HAVE_PCRE2 := $(call pkg,libpcre2-8)
HAVE_UTF8PROC := $(call pkg,libutf8proc)
HAVE_YAML := $(call pkg,yaml-0.1)
HAVE_PROTOBUFC := $(and $(call pkg,libprotobuf-c),$(shell command -v protoc-c 2>/dev/null))
HAVE_EVENT := $(and $(call pkg,libevent),$(call pkg,libevent_pthreads))
HAVE_ZLIB := $(call pkg,zlib)
HAVE_SERVER := $(and $(HAVE_PROTOBUFC),$(HAVE_EVENT),$(HAVE_ZLIB))
include features.mk
HAVE_GRPC := $(and $(call want,grpc),$(HAVE_PROTOBUFC),$(call pkg,grpc))
HAVE_REDIS := $(and $(call want,redis),$(HAVE_SERVER),$(call pkg,hiredis),$(call pkg,libssl),$(call pkg,libcrypto))
grpc_CFLAGS := $(if $(HAVE_GRPC),-DNRD_HAVE_GRPC)
text_CFLAGS := $(if $(HAVE_PCRE2),-DNRD_HAVE_PCRE2) $(if $(HAVE_UTF8PROC),-DNRD_HAVE_UTF8PROC) $(if $(HAVE_YAML),-DNRD_HAVE_YAML)
text_LIBS := $(if $(HAVE_PCRE2),-lpcre2-8) $(if $(HAVE_UTF8PROC),-lutf8proc) $(if $(HAVE_YAML),-lyaml)
proto_LIBS := -lprotobuf-c

# ---- rooms ----
src_of = $(sort $(shell find src/$(1) -name '*.c' 2>/dev/null))
obj_of = $(patsubst src/%.c,$(B)/obj/%.o,$(call src_of,$(1)))

OBJ_base := $(call obj_of,base)
OBJ_formats := $(call obj_of,formats)
# Who links libnereid.so takes its errors: what one makes the other reads and frees.
OBJ_base_nereid := $(filter-out %/error.o,$(OBJ_base))
OBJ_text := $(call obj_of,text)
OBJ_audio := $(filter-out $(B)/obj/audio/plugin/%,$(call obj_of,audio))
OBJ_guided := $(call obj_of,guided)
OBJ_model := $(call obj_of,model)
# ISAS="avx2": kernels for these instruction sets only, and what has been compiled stays. They are most of the time that a
# build takes.
isas_of = $(filter-out %_linear,$(patsubst isa_%,%,$(basename $(notdir $(wildcard $(1))))))
ALL_ISAS := $(call isas_of,src/device/cpu/isa_*.c)
ISAS ?= $(ALL_ISAS)
override ISAS := $(sort $(ISAS) $(call isas_of,$(B)/obj/device/cpu/isa_*.o))
OBJ_device := $(filter-out $(B)/obj/device/cuda/% $(B)/obj/device/plugin/% \
    $(foreach i,$(filter-out $(ISAS),$(ALL_ISAS)),%/isa_$(i).o %/isa_$(i)_linear.o),$(call obj_of,device))
# Program and plug-in of one interface: see nereid/device.h.
DEVICE_ID := -DNRD_DEVICE_ID='"$(shell (echo $(NRD_VERSION); cat include/nereid/device.h include/nereid/device/*.h include/nereid/dtype.h) | sha256sum | head -c 16)"'
OBJ_isa := $(filter %/isa.o $(B)/obj/device/cpu/isa_%,$(OBJ_device))
OBJ_engine := $(call obj_of,engine)
OBJ_executor := $(call obj_of,executor)
OBJ_core := $(call obj_of,core)
OBJ_frontends := $(call obj_of,frontends)
OBJ_tools := $(call obj_of,tools)
-include src/image/build.mk
OBJ_nereid := $(OBJ_base) $(OBJ_formats) $(OBJ_text) $(OBJ_audio) $(OBJ_guided) $(OBJ_model) $(OBJ_device) $(OBJ_engine) $(OBJ_image) $(OBJ_executor)
BACKENDS := $(filter-out util,$(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/backends/*/*.c))))))

-include src/backends/python/build.mk
-include src/tls/build.mk
-include src/cloud/build.mk
-include src/hub/build.mk
-include src/audio/build.mk

UNIT_SRC := $(sort $(shell find tests/unit tests/ops -name 'test_*.c' 2>/dev/null))
ifeq ($(HAVE_SERVER),)
UNIT_SRC := $(filter-out tests/unit/core/% tests/unit/frontends/%,$(UNIT_SRC))
endif
ifeq ($(HAVE_GRPC),)
UNIT_SRC := $(filter-out tests/unit/frontends/grpc/%,$(UNIT_SRC))
endif
ifeq ($(HAVE_CLOUD),)
UNIT_SRC := $(filter-out tests/unit/cloud/%,$(UNIT_SRC))
endif
UNIT_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SRC))
ifneq ($(BUILD),tsan) # its threads are those of test_ops
ifeq ($(ARCH),x86_64)
UNIT_BIN += $(B)/tests/ops/test_ops_amx
endif
endif
PROTO_SRC := $(wildcard protos/*.proto)
PROTO_C := $(patsubst protos/%.proto,$(B)/gen/%.pb-c.c,$(PROTO_SRC))
OBJ_proto := $(B)/obj/gen/model_config.pb-c.o # what the core needs; the rest belongs to front ends

.DEFAULT_GOAL := all
.PHONY: all engine server help clean deps unit
.SECONDARY:

all: engine $(if $(HAVE_SERVER),server,no-server) $(if $(PYTHON_INCLUDE),python) ## Build everything that this machine has the libraries for

# The CUDA plug-in takes minutes for all architectures: built where a GPU is, or with CUDA=1.
WANT_CUDA := $(if $(NVCC),$(if $(FEATURES),$(filter cuda,$(FEATURES)),$(wildcard /dev/nvidiactl)$(CUDA)))
$(eval $(check_features))
engine: $(B)/lib/libnereid.so $(B)/bin/nereid $(B)/bin/trtllm-build $(B)/bin/trtllm-serve $(B)/bin/trtllm-bench tensorrt_llm/examples tensorrt_llm/triton_backend/tools examples/models $(if $(HAVE_HUB),$(B)/lib/nereid_hub.so) $(if $(HAVE_IMAGE),$(B)/lib/nereid_image.so) $(if $(HAVE_SOUND),$(B)/lib/nereid_sound.so) $(if $(WANT_CUDA),$(B)/lib/nereid_cuda.so) ## The engine and its tools: needs only a C compiler (CUDA plug-in where nvcc and a GPU are)

no_server := The server needs libevent, zlib, protobuf-c and protoc-c: 'make deps' installs them.
.PHONY: no-server
no-server:
	@echo "Warning: only the engine was built. $(no_server)" >&2
ifeq ($(HAVE_SERVER),)
server:
	@echo "$(no_server)" >&2; exit 1
else
server: $(B)/lib/libtritonserver.so $(B)/bin/tritonserver \
        $(if $(HAVE_TLS),$(B)/lib/nereid_tls.so) \
        $(if $(HAVE_CLOUD),$(B)/lib/nereid_cloud.so) \
        $(if $(HAVE_GRPC),$(B)/lib/nereid_grpc.so) \
        $(foreach b,$(BACKENDS),$(B)/backends/$(b)/libtriton_$(b).so) $(B)/share/nereid/.templates ## The server, its core and backends
endif

# ---- objects: headers found by the compiler, rebuilt when options change ----
$(call remember,$(FLAGS_FILE),$(CC) $(filter-out -Werror $(PREFIX_MAP),$(NRD_CFLAGS)) $(CPPFLAGS) $(CFLAGS) $(text_CFLAGS) $(grpc_CFLAGS) $(NRD_LDFLAGS) $(LDFLAGS))
# Objects that were made without -Werror prove nothing about warnings: with WERROR=1 all are made
# again. The other way round they stay.
UNPROVED := $(B)/obj/.unproved
ifneq ($(findstring -Werror,$(WARN)),)
$(shell [ ! -e $(UNPROVED) ] || { touch $(FLAGS_FILE); rm -f $(UNPROVED); })
else
mark_unproved := ; [ -e $(UNPROVED) ] || : >$(UNPROVED)
endif

# A build from nothing ends earlier by a fifth with lines alone for a debugger (CFLAGS=-g: variables too), and with rooms that work
# once, when a model is opened or a command begins, compiled with less care. What is there already is not made again for that.
QUICK_release := -g1
QUICK_asan := -g1
QUICK_tsan := -g1
$(B)/obj/tools/%.o $(B)/obj/model/%.o: COLD_release := -O1
$(B)/obj/tools/load/%.o $(B)/obj/tools/quantize/%.o $(B)/obj/tools/eval/%.o: COLD_release :=
$(B)/obj/model/plan%.o $(B)/obj/model/quant/%.o $(B)/obj/model/lora%.o $(B)/obj/model/finite.o: COLD_release :=
# One shell with the compiler in it: of 800 files each further process is felt.
define compile
	$(Q)$(if $(Q),echo "  CC  $<"; )[ -d $(@D) ] || mkdir -p $(@D)$(mark_unproved); exec $(CC) $(NRD_CFLAGS) $(QUICK_$(BUILD)) $(COLD_$(BUILD)) $(CPPFLAGS) $(CFLAGS) $(1) -MMD -MP -c $< -o $@
endef

$(B)/obj/text/%.o: src/text/%.c $(FLAGS_FILE)
	$(call compile,$(text_CFLAGS))
# Loops over lanes become vectors.
$(B)/obj/tools/quantize/lanes.o: src/tools/quantize/lanes.c $(FLAGS_FILE)
	$(call compile,-O3)
# The kernels choose their instruction set at run time, so each may use what it names. Where a debugger finds their
# variables is not worth half of the time that the largest of them take to compile.
$(B)/obj/device/%.o: src/device/%.c $(FLAGS_FILE)
	$(call compile,-O3 -fno-math-errno -g1 $(DEVICE_FLAGS))
$(call remember,$(B)/obj/.isas,$(ISAS))
$(B)/obj/device/cpu/isa.o: $(B)/obj/.isas
# Only who compares it is told: the interface may change without all kernels being compiled again.
$(B)/obj/device/device.o $(B)/obj/device/plugin/plugin.o: DEVICE_FLAGS := $(DEVICE_ID)
$(B)/obj/formats/%.o: src/formats/%.c $(FLAGS_FILE)
	$(call compile,$(text_CFLAGS))
$(B)/obj/executor/%.o: src/executor/%.c $(FLAGS_FILE)
	$(call compile,$(text_CFLAGS))
$(B)/obj/frontends/common/header_pattern.o: src/frontends/common/header_pattern.c $(FLAGS_FILE)
	$(call compile,$(text_CFLAGS))
$(B)/obj/core/%.o: src/core/%.c $(FLAGS_FILE) | $(PROTO_C)
	$(call compile,)
$(B)/obj/backends/%.o: src/backends/%.c $(FLAGS_FILE)
	$(call compile,)
$(B)/obj/gen/%.o: $(B)/gen/%.c $(FLAGS_FILE)
	$(call compile,-Wno-conversion -Wno-shadow)
$(B)/obj/%.o: src/%.c $(FLAGS_FILE)
	$(call compile,)
$(PROTO_C): $(B)/gen/%.pb-c.c: protos/%.proto
	@mkdir -p $(@D)
	$(Q)protoc-c --proto_path=protos --c_out=$(@D) $<

-include src/frontends/grpc/build.mk
-include src/frontends/ui/build.mk
-include src/tools/build.mk

# ---- artifacts ----
comma := ,
define link
	@mkdir -p $(@D)
	@[ "$(V)" = 1 ] || echo "  LD  $@"
endef

# Before 1.0 a minor version may change the interface, so the name carries it. libtritonserver.so has none:
# backends of others are linked with that name.
SONAME := libnereid.so.$(basename $(NRD_VERSION))
# A libnereid.so of another version is none, and is not installed beside this one's.
$(shell [ "$$(readlink $(B)/lib/libnereid.so)" = $(SONAME) ] || rm -f $(B)/lib/libnereid.so; \
    rm -f $(filter-out $(B)/lib/$(SONAME),$(wildcard $(B)/lib/libnereid.so.*)))
$(B)/lib/$(SONAME): $(OBJ_nereid)
	$(link)
	$(Q)$(CC) -shared -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) $(text_LIBS) $(LIBS_base) -Wl,-soname,$(SONAME)
$(B)/lib/libnereid.so: $(B)/lib/$(SONAME)
	$(Q)ln -sfn $(SONAME) $@
# What tritonserver takes, `nereid serve` checks before it builds anything.
$(B)/bin/nereid: $(OBJ_nereid) $(OBJ_tools) $(OBJ_tls) $(OBJ_hub) $(addprefix $(B)/obj/frontends/,common/network.o options_read.o options_table.o options_values.o passed_sockets.o ports.o)
	$(link)
	$(Q)$(CC) -pie -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) $(tools_LIBS) $(text_LIBS) $(LIBS_base)
# The paths of the guides. Not files of the repository: some ways to hand on a tree lose symbolic links.
tensorrt_llm/examples:
	@mkdir -p $(@D)
	$(Q)ln -sfn ../examples $@
tensorrt_llm/triton_backend/tools:
	@mkdir -p $(@D)
	$(Q)for f in all_models ci inflight_batcher_llm scripts tools; do ln -sfn ../../$$f $(@D)/$$f; done
examples/models: scripts/guide_links
	$(Q)scripts/guide_links . >/dev/null && touch $@
# The verbs `build`, `serve` and `bench` under the names that the guides call.
$(B)/bin/trtllm-build $(B)/bin/trtllm-serve $(B)/bin/trtllm-bench: $(B)/bin/nereid
	$(Q)ln -sfn nereid $@
$(B)/lib/libtritonserver.so: $(OBJ_base) $(OBJ_core) $(OBJ_proto) $(wildcard src/core/libtritonserver.map)
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) $(proto_LIBS) $(LIBS_base) \
	    $(addprefix -Wl$(comma)--version-script=,$(filter %.map,$^)) -Wl,-soname,libtritonserver.so
$(B)/bin/tritonserver: $(OBJ_base_nereid) $(OBJ_frontends) $(OBJ_tls) $(B)/lib/libtritonserver.so $(B)/lib/libnereid.so
	$(link)
	$(Q)$(CC) -pie -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -L$(B)/lib -ltritonserver -lnereid -levent -levent_pthreads -lz \
	    $(frontends_LIBS) $(text_LIBS) $(LIBS_base) -Wl,-rpath,'$$ORIGIN/../lib'

# One rule for every backend; <name>_BASE: instead of all of base, <name>_LIBS: its libraries.
$(foreach b,multimodal tokenizer tensorrtllm whisper,$(eval $(b)_BASE := $(OBJ_base_nereid)) \
    $(eval $(b)_LIBS := -L$(B)/lib -lnereid) $(eval $(b)_DEPS := $(B)/lib/libnereid.so))
define backend_rule
$(B)/backends/$(1)/libtriton_$(1).so: $$(or $$($(1)_BASE),$$(OBJ_base)) $$(call obj_of,backends/util) $$(filter-out $(B)/obj/backends/python/stub/%,$$(call obj_of,backends/$(1))) \
        src/backends/backend.map $(B)/lib/libtritonserver.so $$($(1)_DEPS)
	$$(link)
	$$(Q)$$(CC) -shared -o $$@ $$(filter %.o,$$^) $$(NRD_LDFLAGS) $$(LDFLAGS) -L$(B)/lib -ltritonserver $$($(1)_LIBS) \
	    $$(LIBS_base) -Wl,--version-script=src/backends/backend.map \
	    -Wl,-rpath,'$$$$ORIGIN/../../lib' -Wl,-soname,libtriton_$(1).so
endef
$(foreach b,$(BACKENDS),$(eval $(call backend_rule,$(b))))

-include src/caches/build.mk
-include src/agents/build.mk

# The templates of repositories, where the programs look for them.
$(B)/share/nereid/.templates: $(wildcard all_models/*/*/config.pbtxt)
	@mkdir -p $(@D)
	$(Q)cp -r all_models $(@D)/ && touch $@

-include src/device/cuda/build.mk
include install.mk
-include src/python/build.mk

# ---- tests ----
-include tests/server/backends/build.mk
-include tests/torture/build.mk
-include tests/chaos/build.mk
unit: $(UNIT_BIN) ## Build and run the C unit tests (BUILD=asan|tsan for sanitizers)
	@scripts/run_unit $(filter-out $(if $(NO_OPS),%/test_ops %/test_ops_amx) \
	    $(if $(NO_DRAFTS),$(addprefix %/executor/test_,draws eagle draft_model medusa recorded recurrent)),$(UNIT_BIN))

# Compiled and linked apart, so that each test knows its headers.
$(B)/tests/%.o: tests/%.c $(FLAGS_FILE)
	$(call compile,-Itests $(text_CFLAGS) $(grpc_CFLAGS))
$(patsubst %.c,$(B)/%.o,$(wildcard tests/unit/frontends/grpc/*.c)): | $(PROTO_C)
# Of an archive a test takes what it uses: all tests with the whole engine in each are 7 GB.
$(B)/tests/libnereid.a: $(filter-out $(OBJ_isa),$(OBJ_nereid)) $(B)/tests/isa.o
# One object: a name that may be missing (weak) takes nothing out of an archive.
$(B)/tests/isa.o: $(OBJ_isa)
	@mkdir -p $(@D)
	$(Q)$(CC) -r -nostdlib -o $@ $^
$(B)/tests/libfrontends.a: $(OBJ_frontends) $(OBJ_tls) $(OBJ_formats) $(OBJ_text) $(OBJ_audio) $(OBJ_base)
$(B)/tests/lib%.a:
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcsT $@ $^
$(B)/tests/unit/core/%: $(B)/tests/unit/core/%.o $(B)/lib/libtritonserver.so $(OBJ_core) $(OBJ_proto) $(OBJ_base)
	$(link)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -rdynamic $(proto_LIBS) -lcmocka $(LIBS_base)
$(B)/tests/unit/core/test_server $(B)/tests/unit/core/test_sequence $(B)/tests/unit/core/test_chain: | $(B)/backends/identity/libtriton_identity.so
# One hash for everything.
$(B)/tests/unit/core/test_cache: private LDFLAGS += -Wl,--wrap=nrd_siphash_end
$(B)/tests/unit/core/test_cache: | $(B)/backends/identity/libtriton_identity.so $(B)/caches/local/libtritoncache_local.so
$(B)/tests/unit/core/test_lend: | $(B)/backends/identity/libtriton_identity.so $(B)/tests/backends/fickle/libtriton_fickle.so
$(B)/tests/unit/frontends/%: $(B)/tests/unit/frontends/%.o $(B)/tests/libfrontends.a $(B)/lib/libtritonserver.so
	$(link)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(NRD_LDFLAGS) $(LDFLAGS) \
	    -L$(B)/lib -ltritonserver -levent -levent_pthreads -lz $(frontends_LIBS) $(text_LIBS) -lcmocka $(LIBS_base) -Wl,-rpath,$(abspath $(B)/lib)
$(B)/tests/unit/cloud/%: $(B)/tests/unit/cloud/%.o $(OBJ_cloud) $(OBJ_base)
	$(link)
	$(Q)$(CC) -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) -lcurl -lexpat -lcrypto -lcmocka $(LIBS_base)
$(B)/tests/unit/hub/%: $(B)/tests/unit/hub/%.o $(OBJ_hub) $(OBJ_base)
	$(link)
	$(Q)$(CC) -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) -lcmocka $(LIBS_base)
# The kernels of the matrix unit with its instructions in plain C, for machines without them.
AMX_WORDS := -Itests -DNRD_AMX_WORDS='"ops/amx_words.h"'
$(B)/tests/ops/isa_amx.o $(B)/tests/ops/isa_amx_linear.o: $(B)/tests/ops/%.o: src/device/cpu/%.c $(FLAGS_FILE)
	$(call compile,-O3 -fno-math-errno -g1 $(AMX_WORDS))
$(B)/tests/ops/harness_amx.o: tests/ops/harness.c $(FLAGS_FILE)
	$(call compile,$(AMX_WORDS))
# One program for all devices; it needs neither the engine nor a test library.
OPS_OBJ := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard tests/ops/*.c)))
$(B)/tests/ops/test_ops: $(OPS_OBJ) $(OBJ_base) $(OBJ_device)
$(B)/tests/ops/test_ops_amx: $(filter-out %/harness.o,$(OPS_OBJ)) $(B)/tests/ops/harness_amx.o $(B)/tests/ops/isa_amx.o \
    $(B)/tests/ops/isa_amx_linear.o $(OBJ_base) $(filter-out %/isa_amx.o %/isa_amx_linear.o,$(OBJ_device))
$(B)/tests/ops/test_ops $(B)/tests/ops/test_ops_amx:
	$(link)
	$(Q)$(CC) -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) $(LIBS_base)
# The CPU it opens records steps.
$(B)/tests/unit/executor/test_recorded: private LDFLAGS += -Wl,--wrap=nrd_cpu_open
# Its clock can go ahead.
$(B)/tests/unit/guided/test_guided: private LDFLAGS += -Wl,--wrap=clock_gettime
# Their calls of the allocator go through tests/unit/no_memory.h.
$(B)/tests/unit/%/test_no_memory: private LDFLAGS += $(addprefix -Wl$(comma)--wrap=,malloc calloc realloc strdup strndup \
    vasprintf asprintf __vasprintf_chk __asprintf_chk)
$(B)/tests/unit/tools/test_quantize: $(addprefix $(B)/obj/tools/quantize/,awq.o cache.o gptq.o grid.o input.o math.o nearest.o pack.o pack_gptq.o pack_tensor.o refine.o smooth.o together.o)
$(B)/tests/%: $(B)/tests/%.o $(B)/tests/libnereid.a
	$(link)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(NRD_LDFLAGS) $(LDFLAGS) $(text_LIBS) -lcmocka $(LIBS_base)

include tests/fuzz/build.mk

-include $(shell find $(B)/obj $(B)/tests build/fuzz/obj -name '*.d' 2>/dev/null)

help: ## This list
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

clean: ## Remove everything that was built
	rm -rf build

deps: ## Install the libraries that the server needs (Debian, Ubuntu)
	@scripts/install_deps

# ---- for users ----
MODEL ?= smollm2
SERVE_ARGS ?=
.PHONY: serve test check cycles venv
serve: deps ## From a fresh machine to a served model: installs, builds, fetches, serves (MODEL=smollm2|gemma3)
	@$(MAKE) --no-print-directory -j$$(nproc) ISAS="$$(scripts/own_isa)" all
	@gguf=$$(scripts/fetch_model $(MODEL)) && exec $(B)/bin/nereid serve "$$gguf" $(SERVE_ARGS)

test: ## Install what tests need, build with warnings as errors, run every suite
	@scripts/install_deps test
	@scripts/run_tests

# What takes longest is run only where what it tests has changed since the last commit but one: comparisons of operations, and
# drafts, whose answers are compared with those without over many requests.
OPS_SRC := src/device include/nereid tests/ops
DRAFTS_SRC := src/executor src/engine src/model src/device include/nereid tests/unit/executor
unchanged = $$(git diff --quiet HEAD~1 -- $(1) && echo 1)
check: compile_commands.json ## A minute: house rules, changed lines, unit tests under the address sanitizer
	@scripts/check_includes
	@scripts/check_banned
	@scripts/check_headers
	@scripts/check_license
	@scripts/check_version
	@scripts/check_test_names
	@scripts/check_programs
	@scripts/check_alloc
	@scripts/check_changed
	@$(MAKE) --no-print-directory WERROR=1 cycles
	@UNIT_JOBS=$$(nproc) $(MAKE) --no-print-directory BUILD=asan WERROR=1 unit \
	    NO_OPS=$(call unchanged,$(OPS_SRC)) NO_DRAFTS=$(call unchanged,$(DRAFTS_SRC))

# How each file is compiled, for editors and clang-tidy.
.PHONY: tidy format
compile_commands.json: $(FLAGS_FILE) $(MAKEFILE_LIST)
	$(Q)$(MAKE) --no-print-directory -Bn V=1 all test-backends $(UNIT_BIN) 2>/dev/null | scripts/compile_commands >$@.tmp && mv $@.tmp $@
TIDY ?= $(filter src/%.c,$(call src_of,))
tidy: compile_commands.json ## clang-tidy on the whole tree (TIDY="files"); `make check` looks at changed lines
	$(Q)printf '%s\n' $(TIDY) | xargs -P $$(nproc) -n 1 clang-tidy -p . --quiet
format: ## Put the lines that differ from main into the format of .clang-format
	$(Q)git clang-format "$$(git merge-base HEAD main)" -- '*.c' '*.h' || true

# Kernels are left out, which are most of a build's time and use nobody, and what needs a library that is not here.
CYCLES := $(OBJ_base) $(OBJ_formats) $(OBJ_text) $(OBJ_audio) $(OBJ_guided) $(OBJ_image) $(OBJ_model) $(OBJ_engine) $(OBJ_executor) $(OBJ_core) \
    $(OBJ_frontends) $(OBJ_tools) $(OBJ_tls) $(if $(HAVE_TLS),$(OBJ_tls_plugin)) $(OBJ_python) $(call obj_of,agents) $(OBJ_hub) \
    $(if $(HAVE_CLOUD),$(OBJ_cloud)) $(filter-out $(if $(HAVE_REDIS),,$(B)/obj/caches/redis/%),$(call obj_of,caches)) \
    $(filter-out $(B)/obj/device/cpu/isa_%,$(OBJ_device)) $(filter-out $(B)/obj/backends/python/stub/%,$(call obj_of,backends)) $(PYSTUB_OBJ)
cycles: $(CYCLES) ## Print which files of each room use each other in circles; fail where any do
	@scripts/check_cycles $(B)/obj

# Python packages of the tests, in a folder of their own.
VENV := build/venv
venv: $(VENV)/.done
.PHONY: arm64-test bench bench-cpu
ARM64_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
arm64-test: venv ## The engine compiled for ARM gives the reference's results (gcc-aarch64-linux-gnu, qemu-user)
	$(Q)$(MAKE) --no-print-directory BUILD=arm64 WERROR=1 engine
	$(Q)NEREID_EVAL="$(ARM64_RUN) build/arm64/bin/nereid eval" $(VENV)/bin/python -m pytest -q \
	    -p no:cacheprovider --timeout 300 tests/model -k tiny_model
slurm-check: engine ## Ranks under a real Slurm with two nodes on this machine (slurm-wlm, munge; as root)
	$(Q)scripts/check_slurm
bench: build/tests/ops/test_ops ## Each operation beside the machine's limits (OP=linear|norm|attention|sample|head ISA= THREADS=)
	$(Q)build/tests/ops/test_ops --speed $(if $(ISA),--isa $(ISA)) $(if $(THREADS),--threads $(THREADS)) $(OP)
BENCH_ARGS ?= --formats Q4_0,Q8_0
bench-cpu: engine ## Beside llama.cpp, compiled for this machine (MODEL=smollm2|gemma3, BENCH_ARGS)
	$(Q)[ -d build/venv-bench ] || $(PYTHON) -m venv build/venv-bench
	$(Q)CMAKE_ARGS=-DGGML_NATIVE=ON build/venv-bench/bin/pip install -q --disable-pip-version-check \
	    --no-binary llama-cpp-python llama-cpp-python
	$(Q)build/venv-bench/bin/python tests/bench/bench_cpu.py "$$(scripts/fetch_model $(MODEL))" $(BENCH_ARGS)
$(VENV)/.done: tests/requirements.txt
	$(Q)$(PYTHON) -m venv $(VENV)
	$(Q)$(VENV)/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	$(Q)touch $@
