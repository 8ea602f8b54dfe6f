# SPDX-License-Identifier: Apache-2.0
# The page's files are inside the program. Included before the rules of the artifacts.
UI_PAGE := $(wildcard src/frontends/ui/page/*)
$(B)/obj/frontends/ui/files.o: $(UI_PAGE)
$(B)/obj/frontends/ui/files.o: NRD_CFLAGS += -DNRD_UI_PAGE='"$(abspath src/frontends/ui/page)"'
