# SPDX-License-Identifier: Apache-2.0
# `nereid top`, `nereid bench serve` and `nereid client` speak HTTP through libevent, where that is; the other verbs need no library.
ifneq ($(HAVE_EVENT),)
$(B)/obj/tools/top.o $(B)/obj/tools/load/http_client.o: NRD_CFLAGS += -DNRD_HAVE_EVENT
tools_LIBS := -levent
endif
$(B)/obj/tools/nereid.o: NRD_CFLAGS += $(if $(HAVE_TLS),-DNRD_HAVE_TLS) $(if $(PYTHON_INCLUDE),-DNRD_HAVE_PYTHON) \
    $(if $(HAVE_REDIS),-DNRD_HAVE_REDIS) $(if $(HAVE_CLOUD),-DNRD_HAVE_CLOUD) $(if $(HAVE_HUB),-DNRD_HAVE_HUB) \
    $(if $(HAVE_SOUND),-DNRD_HAVE_SOUND)
