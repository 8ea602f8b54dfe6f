/* SPDX-License-Identifier: Apache-2.0
 * What was chosen. */
#include "tools/quantize/mix.h"

#include <stdlib.h>

int nrd_qmix_product_of(const nrd_qmodule *y)
{
    if (y->layer < 0 || y->input == NRD_QINPUT_NONE) {
        return -1;
    }
    return y->input < NRD_PRODUCTS ? y->input : (y->input - NRD_QINPUT_EXPERTS) % 2 ? NRD_PRODUCT_DOWN : NRD_PRODUCT_UP;
}

static bool is_chosen(const nrd_qmix *m, const nrd_qmodule *y, int bits)
{
    const int product = nrd_qmix_product_of(y);
    return m && m->wide_bits == bits && product >= 0 && m->wide[y->layer * NRD_PRODUCTS + product];
}

bool nrd_qmix_is_wide(const nrd_qmix *m, const nrd_qmodule *y)
{
    return is_chosen(m, y, 8);
}

bool nrd_qmix_leaves(const nrd_qmix *m, const nrd_qmodule *y)
{
    return is_chosen(m, y, 16);
}

void nrd_qmix_fini(nrd_qmix *m)
{
    free(m->wide);
    *m = (nrd_qmix){0};
}
