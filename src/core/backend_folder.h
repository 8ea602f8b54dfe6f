/* SPDX-License-Identifier: Apache-2.0
 * core/backend_folder.h - what the folders of the backends say about themselves.
 *
 * Purpose   A backend's folder may bring a file `backend.json`:
 *             default_model_filename  the file of a version folder that the backend runs
 *             runs_backends           true: a folder of a backend that has this file and no library is a
 *                                     backend too, and runs in this one
 *           So that the server knows no backend by name.
 * Owner     The caller has the list; nothing in it changes. Any thread.
 */
#ifndef NRD_CORE_BACKEND_FOLDER_H
#define NRD_CORE_BACKEND_FOLDER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define NRD_BACKEND_FILE "backend.json"

typedef struct nrd_backend_folder {
    char *name;       /* of the backend */
    char *model_file; /* without a '/' */
    bool runs_backends;
} nrd_backend_folder;

typedef struct nrd_backend_folders {
    nrd_backend_folder *v; /* by name, each name once */
    size_t n;
} nrd_backend_folders;

/* The folders in `dir` that say which file they run. For a folder that brings no backend.json, because
 * its backend was built elsewhere, the one of the same name in `../backends` beside the program's folder
 * counts. A file that cannot be read or makes no sense is logged as a warning and left out.
 * NO_MEMORY, with nothing in the list. */
nrd_error *nrd_backend_folders_read(nrd_backend_folders *out, const char *dir) NRD_MUST_USE;
void nrd_backend_folders_fini(nrd_backend_folders *f); /* safe on a zeroed struct */

#endif
