/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/file_store.h - files of clients in a private folder.
 *
 * Purpose   What /v1/files keeps: uploads, and what batches answer. Each file has an owner, who alone sees it.
 *           The folder is given, and then outlives the server, or a temporary one that ends with it.
 * Owner     Any thread; a draft belongs to one at a time.
 * Units     Bytes; seconds since 1970.
 * Errors    NOT_FOUND: no such file of this owner. INVALID_ARG with the reason NRD_FILE_TOO_LARGE or
 *           NRD_FILE_NO_ROOM: a limit is reached. UNAVAILABLE: the folder is another server's. INTERNAL: the system's.
 * Lifetime  Drafts end before the store.
 *
 * In the folder: ID.data, and ID.json once the file is whole; `lock`, held while a server uses it; `secret`, which
 * makes names of owners out of API keys; records of others (nrd_file_store_write). Data without a record is a draft
 * that somebody takes up again, or is removed.
 */
#ifndef NRD_FRONTENDS_OPENAI_FILE_STORE_H
#define NRD_FRONTENDS_OPENAI_FILE_STORE_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_FILE_TOO_LARGE "file_too_large"
#define NRD_FILE_NO_ROOM "storage_full"

enum { NRD_FILE_ID = 40, NRD_FILE_NAME = 512, NRD_FILE_OWNER = 33, NRD_FILE_PURPOSE = 24 };

typedef struct nrd_file_store nrd_file_store;
typedef struct nrd_file_draft nrd_file_draft;

typedef struct nrd_file_limits {
    const char *dir;    /* "": a temporary one, made at the first draft */
    size_t max_files;   /* with drafts */
    uint64_t max_bytes; /* of all together */
    uint64_t max_file_bytes; /* of an upload */
    int64_t keep_secs;  /* a file lives at most so long; 0: any time */
} nrd_file_limits;

typedef struct nrd_file_info {
    char id[NRD_FILE_ID], owner[NRD_FILE_OWNER], name[NRD_FILE_NAME], purpose[NRD_FILE_PURPOSE];
    uint64_t bytes;
    int64_t created, expires; /* expires 0: never */
} nrd_file_info;

nrd_error *nrd_file_store_new(nrd_file_store **out, const nrd_file_limits *limits) NRD_MUST_USE;
void nrd_file_store_free(nrd_file_store *s); /* NULL is fine */
bool nrd_file_store_stays(const nrd_file_store *s); /* the folder outlives the server */
const nrd_file_limits *nrd_file_store_limits(const nrd_file_store *s);
/* 128 bits that only servers on this folder know; the same each time where it stays. */
const uint64_t *nrd_file_store_secret(const nrd_file_store *s);

/* "file-" or another beginning, and 24 digits that nobody guesses. */
nrd_error *nrd_file_new_id(char out[NRD_FILE_ID], const char *prefix) NRD_MUST_USE;
bool nrd_file_is_id(const char *id, const char *prefix);

/* The files of an owner, also of one purpose, behind the id `after` (NULL, "": from the beginning), at most `max`,
 * the newest first unless ascending. *out (free) holds *out_n. INVALID_ARG: there is no file `after`. */
nrd_error *nrd_file_store_list(nrd_file_store *s, const char *owner, const char *purpose, const char *after, bool ascending,
                               size_t max, nrd_file_info **out, size_t *out_n, bool *out_more) NRD_MUST_USE;
nrd_error *nrd_file_store_find(nrd_file_store *s, const char *owner, const char *id, nrd_file_info *out) NRD_MUST_USE;
/* The same, opened for reading; it can be read to the end also if it is removed meanwhile. */
nrd_error *nrd_file_store_open(nrd_file_store *s, const char *owner, const char *id, int *out_fd,
                               nrd_file_info *out) NRD_MUST_USE;
nrd_error *nrd_file_store_remove(nrd_file_store *s, const char *owner, const char *id) NRD_MUST_USE;

/* A file that is being written; nobody sees it. `is_upload`: max_file_bytes holds. */
nrd_error *nrd_file_draft_new(nrd_file_draft **out, nrd_file_store *s, bool is_upload) NRD_MUST_USE;
/* One that an earlier server left: it goes on behind the last whole line. NOT_FOUND. */
nrd_error *nrd_file_draft_resume(nrd_file_draft **out, nrd_file_store *s, const char *id) NRD_MUST_USE;
const char *nrd_file_draft_id(const nrd_file_draft *d);
uint64_t nrd_file_draft_bytes(const nrd_file_draft *d);
int nrd_file_draft_fd(const nrd_file_draft *d); /* for pread; borrows */
/* All or nothing. */
nrd_error *nrd_file_draft_write(nrd_file_draft *d, const char *data, size_t n) NRD_MUST_USE;
/* Takes the draft always. secs: it expires so long from now, 0: as the store has it. */
nrd_error *nrd_file_draft_commit(nrd_file_draft *d, const char *owner, const char *name, const char *purpose, int64_t secs,
                                 nrd_file_info *out) NRD_MUST_USE;
void nrd_file_draft_abort(nrd_file_draft *d); /* NULL is fine */
void nrd_file_draft_leave(nrd_file_draft *d); /* on disk, for nrd_file_draft_resume; NULL is fine */
/* Once drafts were resumed: removes the data of others. */
void nrd_file_store_remove_strays(nrd_file_store *s);

/* The bytes of a file up to the end of its last whole line. */
nrd_error *nrd_file_whole_lines(int fd, uint64_t *out) NRD_MUST_USE;

/* Small records of others beside the files: NAME ends with ".record". Where the folder is temporary, nothing is
 * written. */
nrd_error *nrd_file_store_write(nrd_file_store *s, const char *name, const nrd_str *text) NRD_MUST_USE;
void nrd_file_store_erase(nrd_file_store *s, const char *name);
/* Calls each() with every record that is JSON. */
nrd_error *nrd_file_store_records(nrd_file_store *s, void (*each)(void *arg, const nrd_json *record), void *arg) NRD_MUST_USE;

#endif
