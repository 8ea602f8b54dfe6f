# SPDX-License-Identifier: Apache-2.0
# The Python backend: the library by the general rule; beside it the stub's files, whose extension
# module is built against the stable ABI of Python 3.8 and serves every later version.
PYTHON_INCLUDE := $(shell $(PYTHON) -c 'import os, sysconfig; d = sysconfig.get_paths()["include"]; print(d if os.path.exists(d + "/Python.h") else "")' 2>/dev/null)
ifeq ($(PYTHON_INCLUDE),)
PYTHON_INCLUDE := $(patsubst %/Python.h,%,$(lastword $(sort $(wildcard /usr/include/python3*/Python.h))))
endif
PYTHON_INCLUDE := $(if $(call want,python),$(PYTHON_INCLUDE))
ifeq ($(PYTHON_INCLUDE),)
BACKENDS := $(filter-out python,$(BACKENDS))
else
PYSTUB := $(B)/backends/python
python_DEPS := $(PYSTUB)/c_python_backend_utils.abi3.so $(PYSTUB)/triton_python_backend_utils.py \
               $(PYSTUB)/triton_python_backend_stub.py $(PYSTUB)/backend.json
# No sanitizer in here: the interpreter that loads it has none.
PYSTUB_OBJ := $(patsubst src/%.c,$(B)/obj/pystub/%.o,$(wildcard src/backends/python/stub/*.c) src/backends/python/ipc.c)
$(PYSTUB_OBJ): $(B)/obj/pystub/%.o: src/%.c $(FLAGS_FILE)
	$(call compile,-fno-sanitize=all -isystem $(PYTHON_INCLUDE))
$(PYSTUB)/c_python_backend_utils.abi3.so: $(PYSTUB_OBJ)
	$(link)
	$(Q)$(CC) -shared -o $@ $^ $(filter-out -fsanitize% -fno-sanitize%,$(NRD_LDFLAGS)) $(LDFLAGS)
$(PYSTUB)/%.py: src/backends/python/stub/%.py
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(PYSTUB)/backend.json: src/backends/python/backend.json
	@mkdir -p $(@D)
	$(Q)cp $< $@
endif
