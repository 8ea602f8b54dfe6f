/* SPDX-License-Identifier: Apache-2.0
 * base/file.h - files, folders, paths.
 *
 * Purpose   Reading whole files with a limit, mapping, writing through a temporary name and rename,
 *           folder listing, path arithmetic.
 * Owner     Stateless; nrd_map is owned by its opener and may be read by many threads.
 * Errors    NOT_FOUND where the path does not exist, INVALID_ARG over a limit, UNAVAILABLE where a disk is
 *           full, INTERNAL otherwise; messages carry the path and the system's reason.
 */
#ifndef NRD_BASE_FILE_H
#define NRD_BASE_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Read-only mapping of a whole file. An empty file has data != NULL and size 0. Where the file is made
 * shorter meanwhile, what is gone reads as zeros (base/foreign.h): who used it asks nrd_map_is_lost. */
typedef struct nrd_map {
    const uint8_t *data;
    size_t size_bytes;
    struct nrd_foreign *watch;
} nrd_map;

nrd_error *nrd_map_open(nrd_map *out, const char *path) NRD_MUST_USE;
bool nrd_map_is_lost(const nrd_map *m); /* a part that somebody looked at was gone */
void nrd_map_close(nrd_map *m);         /* safe on a zeroed struct */

/* Whole file as owned, NUL-terminated bytes (free). Refuses files over max_bytes. */
nrd_error *nrd_file_read(char **out, size_t *out_len, const char *path, size_t max_bytes)
    NRD_MUST_USE;

/* Writes to "<path>.tmp.<pid>", which is locked meanwhile (flock), syncs, renames: the old or the new file, never half of one. */
nrd_error *nrd_file_write(const char *path, const void *data, size_t n) NRD_MUST_USE;

/* The same for streams: open, fwrite yourself, commit or abort; both free the writer, commit also
 * on error. */
typedef struct nrd_file_writer nrd_file_writer;
nrd_error *nrd_file_writer_open(nrd_file_writer **out, const char *path) NRD_MUST_USE;
FILE *nrd_file_writer_stream(nrd_file_writer *w); /* borrows */
nrd_error *nrd_file_writer_commit(nrd_file_writer *w) NRD_MUST_USE;
void nrd_file_writer_abort(nrd_file_writer *w);

/* The error of a system call that failed on a path, by errno: "cannot WHAT 'PATH': REASON", and where the disk is full what
 * helps. */
nrd_error *nrd_file_error(const char *what, const char *path) NRD_MUST_USE;

/* Whether `bytes` more have room where `path` is, or is to be made: UNAVAILABLE with both numbers and what helps. Asked before
 * work that takes long. A file system that does not know passes. */
nrd_error *nrd_file_check_room(const char *path, uint64_t bytes) NRD_MUST_USE;

bool nrd_path_exists(const char *path);
/* Why nothing could be found at a path: it does not exist, or a folder on the way may not be read. */
nrd_error *nrd_path_missing(const char *path) NRD_MUST_USE;
bool nrd_path_is_dir(const char *path);
bool nrd_path_is_same(const char *a, const char *b); /* both are there, and are one file or folder, whatever they are called */
/* A relative path that does not climb: not empty, no leading slash, no part "..". Links that lie in
 * the folder are its owner's affair. */
bool nrd_path_stays_inside(const char *path);
const char *nrd_path_base(const char *path); /* borrows */
/* Owned: dir/name; the folder that a path lies in, "." when it names none; the folder of the running program.
 * NO_MEMORY, with *out NULL. */
nrd_error *nrd_path_make(char **out, const char *dir, const char *name) NRD_MUST_USE;
nrd_error *nrd_path_make_dir(char **out, const char *path) NRD_MUST_USE;
nrd_error *nrd_path_make_exe_dir(char **out) NRD_MUST_USE;
/* The same for the start of a program and for tools: without memory they end it (base/mem.h). */
char *nrd_path_join(const char *dir, const char *name);
char *nrd_path_dir(const char *path);
char *nrd_path_exe_dir(void);
nrd_error *nrd_mkdirs(const char *path) NRD_MUST_USE;    /* like mkdir -p */

/* Names in a folder, sorted, without "." and ".."; free with nrd_names_free. */
nrd_error *nrd_dir_list(char ***out_names, size_t *out_n, const char *path) NRD_MUST_USE;
void nrd_names_free(char **names, size_t n);

/* Removes a folder, the files in it, and folders in it with their files; what lies deeper stays, and the folder with it. Takes no
 * memory. */
void nrd_dir_remove(const char *path);

#endif
