/* SPDX-License-Identifier: Apache-2.0
 * base/leftovers.h - unfinished files of programs that were ended.
 *
 * Purpose   What is under way is noted; a program that asks for it removes that when a signal ends it.
 *           What a crash or a power cut left is found by its name, "<name>.tmp.<pid>", and removed by
 *           the next program that works in the folder.
 * Owner     Any thread. At most 24 paths at once; more are not noted.
 * Errors    None: these are best efforts.
 */
#ifndef NRD_BASE_LEFTOVERS_H
#define NRD_BASE_LEFTOVERS_H

/* A file, or a folder that is empty by then: what was noted last goes first. Copies the path. */
void nrd_leftover_note(const char *path);
void nrd_leftover_forget(const char *path);

/* SIGINT, SIGTERM and SIGHUP remove what is noted and then end the program as they do. Signals that
 * are ignored stay so. */
void nrd_leftovers_remove_on_signals(void);

/* Removes files and folders "<name>.tmp.<pid>" in `dir` whose program is gone and in which nothing was
 * written for a minute: that program may run on another machine, where its number means nothing here. */
void nrd_leftovers_sweep(const char *dir);

/* Removes a folder, the files in it, and folders in it with their files; what lies deeper stays, and the folder with it. */
void nrd_folder_remove(const char *dir);

#endif
