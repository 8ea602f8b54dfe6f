/* SPDX-License-Identifier: Apache-2.0 */
#include "base/made_from.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_made_from_write(const char *dir, const char *model)
{
    nrd_error *err = NULL;
    char *path = NULL, *real = NULL;

    errno = 0;
    real = realpath(model, NULL);
    if (!real) {
        return errno == ENOMEM ? nrd_error_no_memory() : NULL;
    }
    err = nrd_path_make(&path, dir, NRD_MADE_FROM_FILE);
    if (!err) {
        err = nrd_file_write(path, real, strlen(real));
    }
    free(path);
    free(real);
    return err;
}

char *nrd_made_from_read(const char *dir)
{
    char *path = NULL, *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_path_make(&path, dir, NRD_MADE_FROM_FILE);

    if (!err) {
        err = nrd_file_read(&text, &n, path, PATH_MAX);
    }
    nrd_error_free(err);
    free(path);
    return text;
}
