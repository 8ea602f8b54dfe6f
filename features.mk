# SPDX-License-Identifier: Apache-2.0
# FEATURES="grpc hub": the optional parts that are built, by name. Without it a build has all whose libraries are there.
ALL_FEATURES := cpu cuda grpc tls hub cloud redis image sound python
UNKNOWN_FEATURES := $(filter-out $(ALL_FEATURES),$(FEATURES))
ifneq ($(UNKNOWN_FEATURES),)
$(error FEATURES: no such part: $(UNKNOWN_FEATURES). The parts are: $(ALL_FEATURES); cpu alone is the least)
endif
# $(call want,PART) is empty where parts were chosen, and not this one.
want = $(if $(FEATURES),$(filter $(1),$(FEATURES)),yes)

NEEDS_cuda := nvcc (the CUDA toolkit)
NEEDS_grpc := libgrpc-dev, libprotobuf-c-dev and protobuf-c-compiler
NEEDS_tls := libssl-dev and libevent-dev
NEEDS_hub := libcurl4-openssl-dev and libssl-dev
NEEDS_cloud := libcurl4-openssl-dev, libexpat1-dev, libssl-dev and what the server needs
NEEDS_redis := libhiredis-dev, libssl-dev and what the server needs
NEEDS_image := libjpeg-dev, libpng-dev and libwebp-dev
NEEDS_sound := libsndfile1-dev
NEEDS_python := Python.h (python3-dev)
FILES_cuda := lib/nereid_cuda.so
FILES_grpc := lib/nereid_grpc.so
FILES_tls := lib/nereid_tls.so
FILES_hub := lib/nereid_hub.so
FILES_cloud := lib/nereid_cloud.so
FILES_redis := caches/redis
FILES_image := lib/nereid_image.so
FILES_sound := lib/nereid_sound.so
FILES_python := backends/python python

# The parts that this build has, when the rooms have looked for their libraries.
features_in = cpu $(if $(WANT_CUDA),cuda) $(if $(HAVE_GRPC),grpc) $(if $(HAVE_TLS),tls) $(if $(HAVE_HUB),hub) $(if $(HAVE_CLOUD),cloud) \
    $(if $(HAVE_REDIS),redis) $(if $(HAVE_IMAGE),image) $(if $(HAVE_SOUND),sound) $(if $(PYTHON_INCLUDE),python)
# What an earlier build left of parts that are not wanted goes: the programs would open it. A part that was named and has no
# library is an error, except for goals that build nothing or install the libraries.
define check_features
ifneq ($(FEATURES),)
$$(shell rm -rf $$(foreach f,$$(filter-out $$(FEATURES),$$(ALL_FEATURES)),$$(addprefix $$(B)/,$$(FILES_$$(f)))))
ifneq ($$(filter-out deps serve help clean,$$(or $$(MAKECMDGOALS),all)),)
$$(foreach f,$$(filter-out $$(features_in),$$(FEATURES)),$$(error FEATURES: $$(f) needs $$(NEEDS_$$(f))))
endif
endif
endef
