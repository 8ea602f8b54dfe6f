/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/lora_slots.h"

#include "base/mem.h"
#include "engine/lora_internal.h"

#include <string.h>

struct nrd_lora_slots {
    nrd_device *dev;
    bool shared;         /* host memory is device memory */
    nrd_stream *stream;  /* where it is not */
    nrd_lora_pair *pairs; /* [NRD_LORA_SLOTS, stride] device memory */
    nrd_lora_pair *row;  /* [stride] */
    int64_t stride;
    int32_t max_rank;
    nrd_lora *lora[NRD_LORA_SLOTS]; /* where operations read it themselves */
    void *mem[NRD_LORA_SLOTS];      /* else its copy on the device */
};

nrd_error *nrd_lora_slots_new(nrd_lora_slots **out, nrd_device *dev, int32_t n_layers)
{
    nrd_error *err = NULL;
    nrd_lora_slots *s = NULL;
    nrd_device_info info;
    void *p = NULL;

    *out = NULL;
    if (!dev->ops->lora) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this device has no LoRA adapters");
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    dev->ops->get_info(dev, &info);
    s->dev = dev;
    s->shared = info.host_is_device;
    s->stride = (int64_t)n_layers * NRD_LORA_POSITIONS;
    s->max_rank = NRD_LORA_MIN_RANK;
    NRD_NEW_GOTO(s->row, (size_t)s->stride, err, fail);
    const size_t bytes = (size_t)NRD_LORA_SLOTS * (size_t)s->stride * sizeof *s->pairs;
    NRD_TRY_GOTO(dev->ops->alloc(dev, &p, NRD_MEM_DEVICE, bytes, "lora adapters"), err, fail);
    s->pairs = p;
    if (!s->shared) {
        NRD_TRY_GOTO(dev->ops->stream_new(dev, &s->stream), err, fail);
    }
    *out = s;
    return NULL;

fail:
    nrd_lora_slots_free(s);
    return err;
}

static void empty(nrd_lora_slots *s, int32_t slot)
{
    nrd_lora_free(s->lora[slot]);
    s->lora[slot] = NULL;
    if (s->mem[slot]) {
        s->dev->ops->free(s->dev, NRD_MEM_DEVICE, s->mem[slot]);
        s->mem[slot] = NULL;
    }
}

void nrd_lora_slots_free(nrd_lora_slots *s)
{
    if (!s) {
        return;
    }
    for (int32_t i = 0; i < NRD_LORA_SLOTS; i++) {
        empty(s, i);
    }
    if (s->stream) {
        s->dev->ops->stream_free(s->stream);
    }
    if (s->pairs) {
        s->dev->ops->free(s->dev, NRD_MEM_DEVICE, s->pairs);
    }
    free(s->row);
    free(s);
}

/* Where the data of l, which lies at l->data here, begins for operations: there, or in the slot's copy. */
static nrd_error *bring(nrd_lora_slots *s, int32_t slot, const nrd_lora *l, const uint8_t **out)
{
    *out = l->data;
    if (s->shared || l->bytes == 0) {
        return NULL;
    }
    NRD_TRY(s->dev->ops->alloc(s->dev, &s->mem[slot], NRD_MEM_DEVICE, l->bytes, "lora adapters"));
    *out = s->mem[slot];
    return s->dev->ops->copy(s->stream, s->mem[slot], l->data, l->bytes);
}

static nrd_error *write_row(nrd_lora_slots *s, int32_t slot)
{
    nrd_lora_pair *to = s->pairs + slot * s->stride;
    const size_t bytes = (size_t)s->stride * sizeof *to;

    if (s->shared) {
        memcpy(to, s->row, bytes);
        return NULL;
    }
    NRD_TRY(s->dev->ops->copy(s->stream, to, s->row, bytes));
    return s->dev->ops->stream_sync(s->stream);
}

nrd_error *nrd_lora_slots_put(nrd_lora_slots *s, int32_t slot, nrd_lora *l)
{
    const uint8_t *from = l ? l->data : NULL, *to = NULL;
    nrd_error *err = NULL;

    empty(s, slot);
    if (!l) { /* nobody reads its pairs any more */
        return NULL;
    }
    NRD_TRY_GOTO(bring(s, slot, l, &to), err, done);
    memset(s->row, 0, (size_t)s->stride * sizeof *s->row);
    for (int32_t i = 0; i < l->n_rows; i++) {
        const nrd_lora_row *r = &l->rows[i];
        s->row[r->layer * NRD_LORA_POSITIONS + nrd_lora_position(r->module)] =
            nrd_lora_pair_at(r, to + ((const uint8_t *)r->a - from), to + ((const uint8_t *)r->b - from));
    }
    while (s->max_rank < l->max_rank) {
        s->max_rank *= 2;
    }
    NRD_TRY_GOTO(write_row(s, slot), err, done);
    if (s->shared) {
        s->lora[slot] = l;
        l = NULL;
    }
done:
    nrd_lora_free(l);
    return err;
}

nrd_lora_bank nrd_lora_slots_bank(const nrd_lora_slots *s)
{
    return (nrd_lora_bank){s->pairs, s->stride, s->max_rank};
}
