# SPDX-License-Identifier: Apache-2.0
# nereid_image.so: JPEG, PNG and WebP for models that see, opened by the engine at the first of such pictures. Built
# where the three libraries are.
HAVE_IMAGE := $(and $(call want,image),$(call pkg,libjpeg),$(call pkg,libpng),$(call pkg,libwebp))
OBJ_image := $(filter-out $(B)/obj/image/plugin/%,$(call obj_of,image))
OBJ_image_plugin := $(call obj_of,image/plugin)
image_LIBS := -ljpeg -lpng -lwebp
$(B)/lib/nereid_image.so: $(OBJ_image_plugin) src/image/plugin/image.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(OBJ_image_plugin) $(NRD_LDFLAGS) $(LDFLAGS) $(image_LIBS) \
	    -Wl,--version-script=src/image/plugin/image.map
# The readers of formats are linked in, so that the test needs no installation.
$(B)/tests/unit/image/test_image.o: NRD_CFLAGS += $(if $(HAVE_IMAGE),-DNRD_HAVE_IMAGE)
$(B)/tests/unit/image/%: $(B)/tests/unit/image/%.o $(OBJ_image) $(if $(HAVE_IMAGE),$(OBJ_image_plugin)) $(OBJ_base)
	$(link)
	$(Q)$(CC) -o $@ $^ $(NRD_LDFLAGS) $(LDFLAGS) $(if $(HAVE_IMAGE),$(image_LIBS)) -lcmocka $(LIBS_base)
