/* SPDX-License-Identifier: Apache-2.0
 * base/leftovers.h - temporary files of programs that are gone.
 *
 * Purpose   What a crash or a power cut left is found by its name and removed by the next program that works in the folder: files
 *           "<name>.tmp.<pid>", which base/file.h writes to, and folders for the time that a program runs, which it holds.
 * Owner     Any thread.
 * Errors    None: this is a best effort.
 */
#ifndef NRD_BASE_LEFTOVERS_H
#define NRD_BASE_LEFTOVERS_H

#include "base/error.h"

/* Removes files "<name>.tmp.<pid>" in `dir` whose program is gone and which nobody has locked, whatever their age, and such folders
 * in which nothing was written for a minute: that program may run elsewhere, where its number means nothing here. */
void nrd_leftovers_sweep(const char *dir);

/* A folder for the time that this program runs: `name` ends with XXXXXX, which becomes what makes it new. Others know that it is used
 * by its lock, which the kernel takes back however the program ends. *out_lock: a descriptor that the caller closes when it has removed
 * the folder. INTERNAL: it cannot be made. */
nrd_error *nrd_leftovers_make_dir(char *name, int *out_lock) NRD_MUST_USE;
/* Removes folders that others have left: of this user, with such a name ("/tmp/nereid-engine-XXXXXX"), that nobody has locked, of another
 * container either, and in which nothing was written for a minute. Where the file system has no locks all stay. */
void nrd_leftovers_sweep_dirs(const char *name);

#endif
