/* SPDX-License-Identifier: Apache-2.0
 * base/leftovers.h - temporary files of programs that are gone.
 *
 * Purpose   What a crash or a power cut left is found by its name, "<name>.tmp.<pid>", which base/file.h writes to, and removed by
 *           the next program that works in the folder.
 * Owner     Any thread.
 * Errors    None: this is a best effort.
 */
#ifndef NRD_BASE_LEFTOVERS_H
#define NRD_BASE_LEFTOVERS_H

/* Removes files "<name>.tmp.<pid>" in `dir` whose program is gone and which nobody has locked, whatever their age, and such folders
 * in which nothing was written for a minute: that program may run elsewhere, where its number means nothing here. */
void nrd_leftovers_sweep(const char *dir);

#endif
