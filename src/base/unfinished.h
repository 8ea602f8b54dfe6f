/* SPDX-License-Identifier: Apache-2.0
 * base/unfinished.h - files that a program is writing, for the case that a signal ends it.
 *
 * Purpose   What is under way is noted (base/file.c notes its temporary files); a program that asks for it removes that when a
 *           signal ends it. What a crash or a power cut leaves: base/leftovers.h.
 * Owner     Any thread. At most 24 paths at once; more are not noted.
 * Errors    None: these are best efforts.
 */
#ifndef NRD_BASE_UNFINISHED_H
#define NRD_BASE_UNFINISHED_H

/* A file, or a folder with what is in it: what was noted last goes first. Copies the path. */
void nrd_unfinished_note(const char *path);
void nrd_unfinished_forget(const char *path);

/* SIGINT, SIGTERM and SIGHUP remove what is noted and then end the program as they do. Signals that
 * are ignored stay so. */
void nrd_unfinished_remove_on_signals(void);

#endif
