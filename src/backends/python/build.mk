# The Python backend: the library by the general rule; beside it the stub's files, whose extension
# module is built against the stable ABI of Python 3.8 and serves every later version.
PYTHON_INCLUDE := $(shell $(PYTHON) -c 'import os, sysconfig; d = sysconfig.get_paths()["include"]; print(d if os.path.exists(d + "/Python.h") else "")' 2>/dev/null)
ifeq ($(PYTHON_INCLUDE),)
PYTHON_INCLUDE := $(patsubst %/Python.h,%,$(lastword $(sort $(wildcard /usr/include/python3*/Python.h))))
endif
ifeq ($(PYTHON_INCLUDE),)
BACKENDS := $(filter-out python,$(BACKENDS))
else
PYSTUB := $(B)/backends/python
python_DEPS := $(PYSTUB)/c_python_backend_utils.abi3.so $(PYSTUB)/triton_python_backend_utils.py \
               $(PYSTUB)/triton_python_backend_stub.py
# No sanitizer in here: the interpreter that loads it has none.
$(PYSTUB)/c_python_backend_utils.abi3.so: $(wildcard src/backends/python/stub/*.[ch]) src/backends/python/ipc.c src/backends/python/ipc.h
	$(link)
	$(Q)$(CC) $(filter-out -fsanitize% -fno-sanitize%,$(CFLAGS)) -isystem $(PYTHON_INCLUDE) -shared -o $@ $(filter %.c,$^) -pthread
$(PYSTUB)/%.py: src/backends/python/stub/%.py
	@mkdir -p $(@D)
	$(Q)cp $< $@
endif
