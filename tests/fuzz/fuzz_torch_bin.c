/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a torch_bin file, and as one of OpenAI's Whisper or of fairseq: open, read everything that is given away, close. */
#include "formats/fairseq.h"
#include "formats/torch_bin.h"
#include "formats/whisper_pt.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_whisper(const uint8_t *data, size_t n)
{
    nrd_whisper_pt *w = NULL;
    nrd_error *err = nrd_whisper_pt_open_memory(&w, data, n);
    nrd_str config = {0};
    volatile size_t sum = 0;

    if (err) {
        nrd_error_free(err);
        return;
    }
    nrd_whisper_pt_config_json(w, &config);
    for (size_t i = 0; i < nrd_whisper_pt_n(w); i++) {
        sum += strlen(nrd_whisper_pt_at(w, i)->name);
    }
    nrd_str_fini(&config);
    nrd_whisper_pt_close(w);
    (void)sum;
}

static void read_fairseq(const uint8_t *data, size_t n)
{
    nrd_fairseq *f = NULL;
    nrd_error *err = nrd_fairseq_open_memory(&f, data, n);
    nrd_str config = {0};
    volatile size_t sum = 0;

    if (err) {
        nrd_error_free(err);
        return;
    }
    nrd_fairseq_config_json(f, &config);
    for (size_t i = 0; i < nrd_fairseq_n(f); i++) {
        const nrd_torch_tensor *t = nrd_fairseq_at(f, i);
        sum += strlen(t->name);
        for (size_t k = 0; k < t->data_bytes; k++) {
            sum += ((const uint8_t *)t->data)[k];
        }
    }
    nrd_str_fini(&config);
    nrd_fairseq_close(f);
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_torch_bin *f = NULL;
    read_whisper(data, n);
    read_fairseq(data, n);
    nrd_error *err = nrd_torch_bin_open_memory(&f, data, n);
    volatile unsigned sum = 0;

    if (err) {
        nrd_error_free(err);
        return 0;
    }
    for (size_t i = 0; i < nrd_torch_bin_n(f); i++) {
        const nrd_torch_tensor *t = nrd_torch_bin_at(f, i);
        const uint8_t *p = t->data;
        sum += (unsigned)strlen(t->name);
        for (size_t k = 0; k < t->data_bytes; k++) {
            sum += p[k];
        }
    }
    nrd_torch_bin_close(f);
    (void)sum;
    return 0;
}
