# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in and its test programs; included by the root Makefile. CUDA_ARCHS chooses the
# targets: Ampere, Ada, Hopper's own code, and PTX that newer GPUs compile at start.
CUDA_ARCHS ?= -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_89,code=sm_89 \
              -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_90,code=compute_90
CUDA_HOME ?= $(abspath $(dir $(NVCC))/..)
CUDA_SRC := $(sort $(wildcard src/device/cuda/*.cu src/device/ops/*.cu))
CUDA_OBJ := $(patsubst src/%.cu,$(B)/cuda/%.o,$(CUDA_SRC))
# 177: what only the kernels for Hopper call is unused in the other targets.
CUDA_FLAGS := -std=c++17 -O3 -lineinfo -Isrc -Iinclude --threads 1 -diag-suppress 177 \
              -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra

$(B)/cuda/%.o: src/%.cu
	@mkdir -p $(@D)
	@echo "  NVCC    $<"
	$(Q)$(NVCC) $(CUDA_FLAGS) $(CUDA_ARCHS) -MMD -MP -c $< -o $@
-include $(CUDA_OBJ:.o=.d)

# Of base only what the kernels call: thread-local data of the rest would not fit where the program's
# threads have no room for it.
CUDA_BASE := $(addprefix $(B)/obj/,base/dtype.o base/env.o device/plugin/plugin.o)

# The runtime is linked in; cuBLASLt is opened at run time; the driver is found by the runtime.
$(B)/lib/nereid_cuda.so: $(CUDA_OBJ) $(CUDA_BASE) src/device/cuda/cuda.map
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	$(Q)$(CXX) -shared -o $@ $(CUDA_OBJ) $(CUDA_BASE) -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt \
	    -lpthread -lm -static-libstdc++ -static-libgcc -Wl,--version-script=src/device/cuda/cuda.map

$(B)/tests/fault.so: tests/gpu/fault.cu
	@mkdir -p $(@D)
	@echo "  NVCC    $<"
	$(Q)$(NVCC) -O2 -shared -Xcompiler -fPIC -gencode=arch=compute_80,code=compute_80 -o $@ $<

$(B)/tests/gpu/ranks: tests/gpu/ranks.c include/nereid/device.h $(OBJ_base)
	@mkdir -p $(@D)
	@echo "  LINK    $@"
	$(Q)$(CC) $(NRD_CFLAGS) $(CPPFLAGS) $(CFLAGS) -o $@ tests/gpu/ranks.c $(OBJ_base) $(NRD_LDFLAGS) $(LDFLAGS) $(LIBS_base)

.PHONY: cuda gpu-test gpu-bench
GPU_OPS := NEREID_DEVICE_DIR=$(B)/lib $(B)/tests/ops/test_ops --device cuda
cuda: $(B)/lib/nereid_cuda.so $(B)/tests/ops/test_ops $(B)/tests/gpu/ranks
gpu-test: cuda $(B)/tests/fault.so ## Checks every CUDA operation against its definition, and the server (needs a GPU)
	$(GPU_OPS)
	$(B)/tests/gpu/ranks $(B)/lib/nereid_cuda.so
	[ ! -x $(B)/bin/tritonserver ] || tests/gpu/engine.sh serve
gpu-bench: cuda ## Times every CUDA operation on Llama-3.1-8B shapes (needs a GPU; OP=linear|norm|attention|sample)
	$(GPU_OPS) --speed $(OP)
