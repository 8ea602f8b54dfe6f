# SPDX-License-Identifier: Apache-2.0
# `make install`: the folders of build/ as they are, so that what is installed can be moved as a whole:
# programs find everything relative to themselves. Included by the Makefile.
PREFIX ?= /opt/nereid
DESTDIR ?=
INSTALL_ROOT = $(DESTDIR)$(PREFIX)
INSTALL_LIST = share/nereid/installed

SBOM := $(B)/share/nereid/sbom.spdx.json

.PHONY: install uninstall sbom
sbom: all ## What the build is linked with, as SPDX JSON in build/share/nereid (needs Python)
	@mkdir -p $(dir $(SBOM))
	$(Q)$(PYTHON) scripts/sbom.py $(B) $(NRD_VERSION) >$(SBOM).tmp && mv $(SBOM).tmp $(SBOM)
# Without Python an installation has no list.
install: all $(if $(shell command -v $(PYTHON) 2>/dev/null),sbom) ## Install under PREFIX (/opt/nereid), staged under DESTDIR
	$(Q)scripts/install_tree "$(B)" "$(INSTALL_ROOT)" "$(NRD_VERSION)" $(INSTALL_LIST)
	@echo "installed under $(INSTALL_ROOT)"
uninstall: ## Remove what `make install` put under PREFIX
	$(Q)scripts/uninstall_tree "$(INSTALL_ROOT)" $(INSTALL_LIST)
