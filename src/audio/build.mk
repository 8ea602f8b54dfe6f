# SPDX-License-Identifier: Apache-2.0
# nereid_sound.so: FLAC, MP3 and Ogg files, opened only when one is sent. Built where libsndfile is.
HAVE_SOUND := $(and $(call want,sound),$(call pkg,sndfile))
OBJ_sound_plugin := $(call obj_of,audio/plugin)
$(B)/lib/nereid_sound.so: $(OBJ_sound_plugin) src/audio/plugin/sound.map
	$(link)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) $(NRD_LDFLAGS) $(LDFLAGS) -lsndfile \
	    -Wl,--version-script=src/audio/plugin/sound.map
