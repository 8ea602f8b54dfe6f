/* SPDX-License-Identifier: Apache-2.0
 * What a hub answers: the first byte chooses a list of files or a description. What is taken stays inside its
 * folder, has hashes that are names of files, and one rule chooses of it without going out of its bounds. */
#include "base/file.h"
#include "base/json.h"
#include "hub/choose.h"
#include "hub/listing.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_file(const nrd_hub_file *f)
{
    const size_t digits = f->is_lfs ? NRD_HUB_MAX_HASH : NRD_HUB_COMMIT;
    if (!nrd_path_stays_inside(f->path) || strlen(f->path) > NRD_HUB_MAX_PATH || !nrd_hub_is_hash(f->hash, digits) ||
        f->size > NRD_HUB_MAX_FILE_BYTES || strpbrk(f->path, "\n\r\033\\")) {
        abort();
    }
}

static void choose(const nrd_hub_listing *l, const char *quant)
{
    nrd_hub_id id = {.repo = "org/name", .rev = "main"};
    const char **names = calloc(l->n + 1, sizeof *names), *model = NULL;
    bool *wanted = calloc(l->n + 1, sizeof *wanted), any = false;

    for (size_t i = 0; i < l->n; i++) {
        names[i] = l->files[i].path;
    }
    strcpy(id.quant, quant);
    nrd_error *err = nrd_hub_choose(&id, names, l->n, wanted, &model);
    for (size_t i = 0; i < l->n; i++) {
        any = any || wanted[i];
    }
    if (!err && !any) {
        abort();
    }
    nrd_error_free(err);
    free(names);
    free(wanted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    if (data[0] % 2) {
        char commit[NRD_HUB_COMMIT + 1];
        nrd_error *err = nrd_hub_read_commit(commit, text, n - 1);
        if (!err && !nrd_hub_is_hash(commit, NRD_HUB_COMMIT)) {
            abort();
        }
        nrd_error_free(err);
        return 0;
    }
    nrd_hub_listing l = {0};
    nrd_error_free(nrd_hub_listing_add(&l, text, n - 1));
    for (size_t i = 0; i < l.n; i++) {
        check_file(&l.files[i]);
    }
    choose(&l, "");
    choose(&l, "Q4_K_M");
    nrd_hub_listing_fini(&l);
    return 0;
}
