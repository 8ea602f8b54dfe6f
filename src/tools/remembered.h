/* SPDX-License-Identifier: Apache-2.0
 * tools/remembered.h - models that clients pulled (hub/served.h), as models of a server. Owner: one thread. */
#ifndef NRD_TOOLS_REMEMBERED_H
#define NRD_TOOLS_REMEMBERED_H

#include "tools/several.h"

/* A model that was fetched with its name for a server: the next one has it too. Anything but "hf:" and m->name is not
 * remembered. */
nrd_error *nrd_remembered_add(nrd_several_model *m, const char *id) NRD_MUST_USE;
/* name, path, record and fetched of each that is still in the cache and has no name of `named`. */
void nrd_remembered_read(nrd_several *out, const nrd_several *named);

#endif
