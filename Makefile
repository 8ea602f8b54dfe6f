# Nereid. `make help` lists the targets; every source file is found by its folder (LAYOUT: rooms),
# so adding a file needs no change here.

SHELL := /bin/bash
BUILD ?= release
CC ?= cc
PYTHON ?= python3
NVCC ?= $(shell command -v nvcc 2>/dev/null)
V ?= 0
Q := $(if $(filter 1,$(V)),,@)

ifeq ($(BUILD),release)
B := build
else
B := build/$(BUILD)
endif

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
ifdef WERROR
WARN += -Werror
endif
OPT_release := -O2 -g -fno-omit-frame-pointer
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT_debug := -O0 -g3 -DNRD_DEBUG
OPT := $(OPT_$(BUILD))

NRD_VERSION := 0.1.0
NRD_COMMIT := $(shell git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
CFLAGS := -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off $(WARN) $(OPT) \
          -Isrc -Iinclude -I$(B)/gen -DNRD_VERSION='"$(NRD_VERSION)"' $(CFLAGS_EXTRA)
LDFLAGS := $(OPT) -pthread -Wl,--as-needed $(LDFLAGS_EXTRA)
LIBS_base := -lm -ldl -lpthread

# ---- optional libraries: found at build time, `nereid --version` tells which are in ----
pkg = $(shell pkg-config --exists $(1) 2>/dev/null && echo yes)
HAVE_PCRE2 := $(call pkg,libpcre2-8)
HAVE_UTF8PROC := $(call pkg,libutf8proc)
HAVE_PROTOBUFC := $(call pkg,libprotobuf-c)
HAVE_EVENT := $(call pkg,libevent)
text_CFLAGS := $(if $(HAVE_PCRE2),-DNRD_HAVE_PCRE2) $(if $(HAVE_UTF8PROC),-DNRD_HAVE_UTF8PROC)
text_LIBS := $(if $(HAVE_PCRE2),-lpcre2-8) $(if $(HAVE_UTF8PROC),-lutf8proc)
proto_LIBS := -lprotobuf-c

# ---- rooms ----
src_of = $(sort $(shell find src/$(1) -name '*.c' 2>/dev/null))
obj_of = $(patsubst src/%.c,$(B)/obj/%.o,$(call src_of,$(1)))

OBJ_base := $(call obj_of,base)
OBJ_formats := $(call obj_of,formats)
OBJ_text := $(call obj_of,text)
OBJ_model := $(call obj_of,model)
OBJ_device := $(filter-out $(B)/obj/device/cuda/%,$(call obj_of,device))
OBJ_engine := $(call obj_of,engine)
OBJ_executor := $(call obj_of,executor)
OBJ_core := $(call obj_of,core)
OBJ_frontends := $(call obj_of,frontends)
OBJ_tools := $(call obj_of,tools)
OBJ_nereid := $(OBJ_base) $(OBJ_formats) $(OBJ_text) $(OBJ_model) $(OBJ_device) $(OBJ_engine) $(OBJ_executor)
BACKENDS := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard src/backends/*/*.c)))))

.PHONY: all engine server help clean
all: engine server
