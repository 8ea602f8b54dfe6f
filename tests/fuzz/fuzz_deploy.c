/* SPDX-License-Identifier: Apache-2.0
 * The matrix file of nereid deploy: whatever it holds becomes rows that can be named, or an error. */
#include "tools/deploy_matrix.c"
#include "tools/options.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_deploy_matrix m;
    nrd_deploy_matrix_init(&m);
    nrd_error *err = nrd_deploy_matrix_parse(&m, (const char *)data, n);
    if (!err) {
        err = nrd_deploy_matrix_finish(&m);
    }
    for (size_t i = 0; !err && i < m.n_precisions; i++) {
        for (size_t k = 0; k < m.precisions[i].n_convert; k++) {
            NRD_ASSERT(m.precisions[i].convert[k][0] != '\0', "options are no empty words");
        }
    }
    nrd_error_free(err);
    nrd_deploy_matrix_fini(&m);
    return 0;
}
