# SPDX-License-Identifier: Apache-2.0
# The module `nereid` for Python, in the folder that goes on its path: build/python. Its extension is built
# against the stable ABI of Python 3.8 and serves every later version. Beside it the folder for those who
# import `tensorrt_llm`: only where it is put on the path too.
ifneq ($(PYTHON_INCLUDE),)
PYMODULE := $(B)/python/nereid
OBJ_python := $(call obj_of,python)
$(OBJ_python): $(B)/obj/python/%.o: src/python/%.c $(FLAGS_FILE)
	$(call compile,-isystem $(PYTHON_INCLUDE))
# The second path is that of a wheel (scripts/wheel.py).
$(PYMODULE)/_nereid.abi3.so: $(OBJ_python) $(OBJ_base_nereid) $(B)/lib/libnereid.so
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -L$(B)/lib -lnereid $(LIBS_base) \
	    -Wl,--version-script=src/python/module.map -Wl,-rpath,'$$ORIGIN/../../lib:$$ORIGIN/runtime/lib'
PYFILES := $(patsubst src/python/%,$(B)/python/%,$(shell find src/python/nereid -name '*.py' -o -name '*.pyi' -o -name py.typed))
$(PYFILES): $(B)/python/%: src/python/%
	@mkdir -p $(@D)
	$(Q)cp $< $@
.PHONY: python
python: $(PYMODULE)/_nereid.abi3.so $(PYFILES) ## The module `nereid` for Python, in build/python
.PHONY: wheel
wheel: all ## A Python wheel of all that was built, in dist/: pip install dist/nereid-*.whl
	$(Q)$(PYTHON) scripts/wheel.py $(B) $(NRD_VERSION) dist
endif
