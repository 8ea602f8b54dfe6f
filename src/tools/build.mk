# SPDX-License-Identifier: Apache-2.0
# `nereid top` speaks HTTP through libevent, where that is; the other verbs need no library.
ifneq ($(HAVE_EVENT),)
$(B)/obj/tools/top.o: NRD_CFLAGS += -DNRD_HAVE_EVENT
tools_LIBS := -levent
endif
$(B)/obj/tools/nereid.o: NRD_CFLAGS += $(if $(HAVE_TLS),-DNRD_HAVE_TLS) $(if $(PYTHON_INCLUDE),-DNRD_HAVE_PYTHON)
