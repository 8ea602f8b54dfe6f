/* SPDX-License-Identifier: Apache-2.0
 * embed, and what moves memory of the cache: counts, copy_blocks and move_tokens. */
#include "ops/harness.h"

/* ---- embed ---- */

enum { EMBED_MOST = 40, POSITIONS = 64 };

/* A table of every format, with and without each option; `linear`: the weight that is the LM head's, too. */
static void embed_check(nrd_dtype type, nrd_dtype out, int32_t vocab, int32_t hidden, bool linear,
                        bool pos, bool prompts)
{
    const bool types = vocab % 2;
    const int32_t part = vocab / 2 % 4; /* 0: the whole table; else a rank's of three, the last of which is not full */
    const bool some =
        kind->is_exact && !part && vocab % 5 < 3; /* columns only */
    const int32_t unit = nrd_dtype_block(type) > 1 ? nrd_dtype_block(type)
                         : hidden % 8 == 0         ? 8
                                                   : 1;
    const int32_t cols = some ? rnd_in(1, hidden / unit) * unit : hidden,
                  first_col = rnd_in(0, (hidden - cols) / unit) * unit;
    const int32_t n_ids = part ? 3 * vocab - 2 : vocab;
    const int32_t n = rnd_in(kind->is_exact ? 0 : 1, EMBED_MOST);
    nrd_weight table = weight_new(type, vocab, cols, 1),
               positions_of = weight_new(NRD_DTYPE_F16, POSITIONS, hidden, 1),
               types_of = weight_new(NRD_DTYPE_F32, 2, hidden, 1);
    int32_t ids[EMBED_MOST], positions[EMBED_MOST], type_ids[EMBED_MOST], out_rows[EMBED_MOST], slots[4];
    const size_t row = nrd_row_bytes(out, hidden);
    const void *from[EMBED_MOST];
    char *rows = host_as(out, (int64_t)EMBED_MOST * hidden, 1);

    for (int i = 0; i < 4; i++) {
        slots[i] = rnd_in(0, n_ids - 1);
    }
    for (int32_t i = 0; i < n; i++) {
        ids[i] = i % 3 == 1   ? -1 - rnd_in(0, 3)
                 : i % 5 == 4 ? n_ids + rnd_in(0, 9)
                              : rnd_in(0, n_ids - 1);
        positions[i] = rnd_in(0, POSITIONS - 1);
        type_ids[i] = rnd_in(-1, 3); /* strangers too */
        out_rows[i] = n - 1 - i;
        from[i] = ids[i] >= n_ids && i % 2 && prompts ? rows + row * (size_t)i : NULL;
    }
    nrd_embed_args a = {.n_tokens = n,
                        .hidden = hidden,
                        .ids = ids,
                        .slot_tokens = slots,
                        .table = &table,
                        .first_id = part ? (part - 1) * vocab : 0,
                        .n_ids = part || some ? n_ids : 0,
                        .first_col = first_col,
                        .scale = 3.0f,
                        .pos_table = pos ? &positions_of : NULL,
                        .positions = positions,
                        .type_table = types ? &types_of : NULL,
                        .types = vocab % 3 ? type_ids : NULL,
                        .prompt_table = prompts ? from : NULL,
                        .out_rows = vocab % 4 < 2 ? out_rows : NULL,
                        .out = host(row * EMBED_MOST),
                        .out_dtype = out};
    ok(nrd_embed_check(&a));
    nrd_embed_ref(&a);
    const float *want = rows_of(out, a.out, NULL, n, hidden);
    case_name("embed %s -> %s, %d of %d x %d, part %d, columns %d to %d%s%s%s%s",
              nrd_dtype_name(type), nrd_dtype_name(out), n, vocab, hidden, part, first_col,
              first_col + cols, linear ? " head" : "", pos ? " positions" : "",
              prompts ? " prompts" : "", types ? " types" : "");
    for (int k = 0; k < n_targets; k++) {
        const target *t = &targets[k];
        nrd_embed_args d = a;
        nrd_weight d_table = weight_on(t, &table, linear),
                   d_pos = weight_on(t, &positions_of, false), d_types = weight_on(t, &types_of, false);
        char *d_rows = dev_put(t, rows, row * EMBED_MOST);
        const void *d_from[EMBED_MOST] = {0};
        for (int32_t i = 0; i < n; i++) {
            d_from[i] = from[i] ? d_rows + row * (size_t)i : NULL;
        }
        d.ids = dev_put(t, ids, (size_t)n * 4);
        d.slot_tokens = dev_put(t, slots, sizeof slots);
        d.positions = dev_put(t, positions, (size_t)n * 4);
        d.out_rows = a.out_rows ? dev_put(t, out_rows, (size_t)n * 4) : NULL;
        d.types = a.types ? dev_put(t, type_ids, (size_t)n * 4) : NULL;
        d.prompt_table = prompts ? dev_put(t, d_from, sizeof d_from) : NULL;
        d.table = &d_table;
        d.pos_table = pos ? &d_pos : NULL;
        d.type_table = types ? &d_types : NULL;
        d.out = dev_out(t, row * (size_t)n);
        ok(t->ops->embed(t->s, &d));
        compare(t, "", dev_rows(t, out, d.out, NULL, n, hidden), want, (int64_t)n * hidden,
                kind->is_exact
                    ? (limit){1e-6, 2e-6, 0} /* a table may be kept as bf16 */
                    : (limit){0, 0,
                              rounding(out) +
                                  (nrd_dtype_block(type) > 1 || type == NRD_DTYPE_I8 ? 4e-3 : 0)});
    }
    case_end();
}

/* Rows for some tokens, each behind `skip` numbers of its own. */
static void add_rows_check(nrd_dtype type, int32_t hidden, int32_t skip)
{
    const int32_t n = rnd_in(kind->is_exact ? 0 : 1, EMBED_MOST);
    const size_t row = nrd_row_bytes(type, skip + hidden), bytes = nrd_row_bytes(type, hidden) * (size_t)n;
    const void *from[EMBED_MOST] = {0};
    char *rows = host_as(type, (int64_t)EMBED_MOST * (skip + hidden), 1), *x = host_as(type, (int64_t)EMBED_MOST * hidden, 1);
    nrd_add_rows_args a = {.n_tokens = n, .hidden = hidden, .rows = from, .skip = skip, .out = host(bytes + 1), .dtype = type};

    memcpy(a.out, x, bytes);
    for (int32_t i = 0; i < n; i++) {
        from[i] = i % 3 ? rows + row * (size_t)i : NULL;
    }
    ok(nrd_add_rows_check(&a));
    nrd_add_rows_ref(&a);
    const float *want = rows_of(type, a.out, NULL, n, hidden);
    case_name("add_rows %s, %d x %d from %d on", nrd_dtype_name(type), n, hidden, skip);
    for (int k = 0; k < n_targets; k++) {
        const target *t = &targets[k];
        nrd_add_rows_args d = a;
        char *d_rows = dev_put(t, rows, row * EMBED_MOST);
        const void *d_from[EMBED_MOST] = {0};
        for (int32_t i = 0; i < n; i++) {
            d_from[i] = from[i] ? d_rows + row * (size_t)i : NULL;
        }
        d.rows = dev_put(t, d_from, sizeof d_from);
        d.out = dev_put(t, x, bytes + 1);
        ok(t->ops->add_rows(t->s, &d));
        compare(t, "", dev_rows(t, type, d.out, NULL, n, hidden), want, (int64_t)n * hidden,
                kind->is_exact ? (limit){1e-6, 2e-6, 0} : (limit){0, 0, rounding(type)});
    }
    case_end();
}

/* Spans of a list of rows that comes in two pieces. */
static void sum_spans_check(int32_t hidden)
{
    const int32_t n_spans = rnd_in(1, 9), seam = rnd_in(0, 200);
    int32_t starts[10] = {0};
    for (int32_t s = 0; s < n_spans; s++) {
        starts[s + 1] = starts[s] + rnd_in(1, 90);
    }
    const int32_t n = starts[n_spans], first = seam < n ? seam : n;
    const size_t out_bytes = (size_t)(n_spans * hidden) * sizeof(double);
    float *x = host_normal((int64_t)n * hidden, 1);
    double *before = host(out_bytes), *want = host(out_bytes);

    for (int32_t i = 0; i < n_spans * hidden; i++) {
        before[i] = want[i] = (double)rnd_unit();
    }
    const nrd_sum_spans_args pieces[2] = {
        {.x = x, .starts = starts, .n_spans = n_spans, .n_rows = first, .hidden = hidden, .out = want},
        {.x = x + (int64_t)first * hidden, .starts = starts, .n_spans = n_spans, .first = first, .n_rows = n - first, .hidden = hidden, .out = want}};
    for (int p = 0; p < 2; p++) {
        ok(nrd_sum_spans_check(&pieces[p]));
        nrd_sum_spans_ref(&pieces[p]);
    }
    case_name("sum_spans, %d of %d rows of %d, %d at first", n_spans, n, hidden, first);
    for (int k = 0; k < n_targets; k++) {
        const target *t = &targets[k];
        const float *d_x = dev_put(t, x, (size_t)n * (size_t)hidden * 4);
        const int32_t *d_starts = dev_put(t, starts, sizeof starts);
        double *out = dev_put(t, before, out_bytes);
        for (int p = 0; p < 2; p++) {
            nrd_sum_spans_args d = pieces[p];
            d.x = d_x + (int64_t)d.first * hidden;
            d.starts = d_starts;
            d.out = out;
            ok(t->ops->sum_spans(t->s, &d));
        }
        void *got = host(out_bytes);
        dev_get(t, got, out, out_bytes);
        same_bytes(t, "", got, want, out_bytes);
    }
    case_end();
}

/* Into rows of `stride` numbers, or in place; out's other numbers stay. */
static void clamp_check(nrd_dtype type, int32_t width, int32_t more, bool has_low)
{
    const int32_t n = rnd_in(kind->is_exact ? 0 : 1, EMBED_MOST), stride = width + more;
    const size_t bytes = nrd_row_bytes(type, width) * (size_t)n, out_bytes = nrd_row_bytes(type, stride) * (size_t)n;
    char *x = host_as(type, (int64_t)EMBED_MOST * width, 1), *out = host_as(type, (int64_t)EMBED_MOST * stride, 1);
    nrd_clamp_args a = {.n_tokens = n, .width = width, .x = x, .out = host(out_bytes + 1), .out_stride = stride,
                        .low = has_low ? -0.75f : -INFINITY, .high = 0.5f, .dtype = type};

    memcpy(a.out, more ? out : x, more ? out_bytes : bytes);
    a.x = more ? x : a.out;
    ok(nrd_clamp_check(&a));
    nrd_clamp_ref(&a);
    const float *want = rows_of(type, a.out, NULL, n, stride);
    case_name("clamp %s, %d x %d to rows of %d%s", nrd_dtype_name(type), n, width, stride, has_low ? "" : ", no low");
    for (int k = 0; k < n_targets; k++) {
        const target *t = &targets[k];
        nrd_clamp_args d = a;
        d.out = dev_put(t, more ? out : x, (more ? out_bytes : bytes) + 1);
        d.x = more ? dev_put(t, x, bytes + 1) : d.out;
        ok(t->ops->clamp(t->s, &d));
        compare(t, "", dev_rows(t, type, d.out, NULL, n, stride), want, (int64_t)n * stride, (limit){0, 0, 0});
    }
    case_end();
}

void check_embed(void)
{
    for (int k = 0; k < 6; k++) {
        clamp_check(kind->acts[k % kind->n_acts], rnd_in(1, 700), k % 2 ? rnd_in(1, 900) : 0, k % 3 != 0);
    }
    for (int k = 0; k < 6; k++) {
        add_rows_check(kind->acts[k % kind->n_acts], rnd_in(1, 700), k % 2 ? rnd_in(1, 2000) : 0);
    }
    for (int k = 0; k < 6; k++) {
        sum_spans_check(rnd_in(1, 700));
    }
    for (int k = 0; k < 2 * N_WEIGHT_TYPES; k++) {
        const nrd_dtype type = weight_types[k % N_WEIGHT_TYPES];
        const int32_t block = nrd_dtype_block(type);
        /* on a GPU integers for linear() have a layout of their own, and F8 is for linear() only */
        const bool linear = kind->is_exact ? k % 2 : type == NRD_DTYPE_F8_E4M3;
        if (has_weight(type)) {
            embed_check(type, kind->acts[k % 3 % kind->n_acts], rnd_in(5, 999),
                        block > 1 ? 512
                        : k % 3   ? 8 * rnd_in(1, 300)
                                  : rnd_in(1, 700),
                        linear, k % 4 < 2, k % 3 != 1);
        }
    }
}

typedef struct embed_run {
    nrd_embed_args a;
} embed_run;

static void embed_call(const target *t, int i, void *user)
{
    (void)i;
    ok(t->ops->embed(t->s, &((embed_run *)user)->a));
}

/* A large vocabulary's table, every token another row. */
void speed_embed(void)
{
    static const int32_t counts[] = {1, 64, 256, 1024, 2048};
    enum { VOCAB = 128256, HIDDEN = 4096, MOST = 2048 };
    const target *t = &targets[0];
    int32_t ids[MOST];

    if (kind->is_exact) {
        return;
    }
    for (int32_t i = 0; i < MOST; i++) {
        ids[i] = rnd_in(0, VOCAB - 1);
    }
    nrd_weight table = {.dtype = NRD_DTYPE_BF16,
                        .rows = VOCAB,
                        .cols = HIDDEN,
                        .scale = 1,
                        .data = dev_pool(t, NRD_DTYPE_BF16, (size_t)VOCAB * HIDDEN * 2),
                        .data_bytes = (uint64_t)VOCAB * HIDDEN * 2};
    embed_run r = {{.hidden = HIDDEN,
                    .ids = dev_put(t, ids, sizeof ids),
                    .table = &table,
                    .scale = 1,
                    .out = dev_out(t, (size_t)MOST * HIDDEN * 2),
                    .out_dtype = NRD_DTYPE_BF16}};
    for (int i = 0; i < 5; i++) {
        r.a.n_tokens = counts[i];
        speed_row(measure(t, embed_call, &r, 32),
                  (work){(double)counts[i] * HIDDEN * 4, 0, PEAK_FLOAT}, "embed %d tokens",
                  counts[i]);
    }
    case_end();
}

/* ---- counts, copy_blocks and move_tokens ---- */

/* A slot of the counts starts anew; its neighbours stay. */
static void counts_check(const target *t, int32_t vocab)
{
    enum { SLOTS = 4, N = 3000 };
    int32_t ids[N];
    const size_t bytes = (size_t)SLOTS * (size_t)vocab * 2;
    uint16_t *want = host(bytes), *got = host(bytes);

    for (size_t i = 0; i < bytes / 2; i++) {
        want[i] = (uint16_t)rnd_in(0, 3);
    }
    for (int i = 0; i < N; i++) {
        ids[i] = rnd_in(0, vocab < 50 ? vocab - 1 : 49);
    }
    nrd_counts_args a = {.slot = 1,
                         .vocab = vocab,
                         .n = N,
                         .ids = dev_put(t, ids, sizeof ids),
                         .counts = dev_put(t, want, bytes)};
    ok(t->ops->counts(t->s, &a));
    dev_get(t, got, a.counts, bytes);
    a.counts = want;
    a.ids = ids;
    ok(nrd_counts_check(&a));
    nrd_counts_ref(&a);
    case_name("counts of %d ids, vocabulary %d", N, vocab);
    same_bytes(t, "", got, want, bytes);
    case_end();
}

static void copy_check(const target *t, nrd_dtype type, int32_t block_tokens)
{
    enum { BLOCKS = 200, PAIRS = 90 };
    const size_t bytes = t->ops->kv_block_bytes(t->dev, type, block_tokens, 2, 64);
    char *want = host(bytes * BLOCKS), *got = host(bytes * BLOCKS);
    int32_t pairs[2 * PAIRS];

    for (size_t i = 0; i < bytes * BLOCKS; i++) {
        want[i] = (char)rnd();
    }
    char *d = dev_put(t, want, bytes * BLOCKS);
    nrd_kv_layer kv = {.base = d,
                       .dtype = type,
                       .n_blocks = BLOCKS,
                       .block_tokens = block_tokens,
                       .n_kv_heads = 2,
                       .head_dim = 64};
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i] = i;
        pairs[2 * i + 1] = BLOCKS - 1 - i;
        memcpy(want + (size_t)(BLOCKS - 1 - i) * bytes, want + (size_t)i * bytes, bytes);
    }
    nrd_copy_blocks_args a = {
        .n_layers = 1, .n_pairs = PAIRS, .src = &kv, .dst = &kv, .pairs = pairs};
    ok(nrd_copy_blocks_check(&a));
    ok(t->ops->copy_blocks(t->s, &a));
    dev_get(t, got, d, bytes * BLOCKS);
    case_name("copy_blocks of %s, blocks of %d", nrd_dtype_name(type), block_tokens);
    same_bytes(t, "", got, want, bytes * BLOCKS);

    void *h = NULL; /* to a pool in host memory, reversed, and back to where they were */
    ok(t->ops->alloc(t->dev, &h, NRD_MEM_HOST, bytes * PAIRS, "test"));
    nrd_kv_layer kept = kv;
    kept.base = h;
    kept.n_blocks = PAIRS;
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i + 1] = PAIRS - 1 - i;
    }
    a.dst = &kept;
    ok(t->ops->copy_blocks(t->s, &a));
    ok(t->ops->fill(t->s, d, 0x5a, bytes * PAIRS));
    a.src = &kept; /* the pairs are their own reverse */
    a.dst = &kv;
    ok(t->ops->copy_blocks(t->s, &a));
    dev_get(t, got, d, bytes * BLOCKS);
    same_bytes(t, "to the host and back", got, want, bytes * BLOCKS);
    t->ops->free(t->dev, NRD_MEM_HOST, h);
    case_end();
}

enum { MOVE_BLOCKS = 7, MOVE_HEADS = 3, MOVE_DIM = 40, MOVE_PAIRS = 80 };

/* A cache whose place p holds the keys and values of row from[p], as rope_kv writes them. */
static nrd_kv_layer cache_of_rows(const target *t, nrd_dtype type, int32_t block_tokens, const char *rows, const int32_t *from)
{
    const int32_t n = MOVE_BLOCKS * block_tokens;
    const size_t row = nrd_row_bytes(kind->acts[0], 3 * MOVE_HEADS * MOVE_DIM);
    const size_t bytes = MOVE_BLOCKS * t->ops->kv_block_bytes(t->dev, type, block_tokens, MOVE_HEADS, MOVE_DIM);
    int32_t *places = host((size_t)n * 4), *zeros = host((size_t)n * 4), table[MOVE_BLOCKS], starts[2] = {0, n};
    char *qkv = host((size_t)n * row), *empty = host(bytes);

    for (int32_t i = 0; i < n; i++) {
        places[i] = i;
        memcpy(qkv + (size_t)i * row, rows + (size_t)from[i] * row, row);
    }
    for (int32_t i = 0; i < MOVE_BLOCKS; i++) {
        table[i] = i;
    }
    float scales[2 * MOVE_HEADS];
    for (int k = 0; k < 2 * MOVE_HEADS; k++) {
        scales[k] = 0.02f + 0.005f * (float)k;
    }
    const nrd_kv_layer kv = {.base = dev_put(t, empty, bytes),
                             .dtype = type,
                             .n_blocks = MOVE_BLOCKS,
                             .block_tokens = block_tokens,
                             .n_kv_heads = MOVE_HEADS,
                             .head_dim = MOVE_DIM,
                             .scales = dev_put(t, scales, sizeof scales)};
    const nrd_batch_view view = {.n_tokens = n,
                                 .n_seqs = 1,
                                 .max_q_len = n,
                                 .max_ctx_len = n,
                                 .positions = dev_put(t, places, (size_t)n * 4),
                                 .token_seq = dev_put(t, zeros, (size_t)n * 4),
                                 .q_start = dev_put(t, starts, sizeof starts),
                                 .ctx_len = dev_put(t, &starts[1], 4),
                                 .block_table = dev_put(t, table, sizeof table),
                                 .block_table_stride = MOVE_BLOCKS};
    const nrd_rope_kv_args a = {.batch = &view,
                                .qkv = dev_put(t, qkv, (size_t)n * row),
                                .act_dtype = kind->acts[0],
                                .n_heads = MOVE_HEADS,
                                .rope = NRD_ROPE_NONE,
                                .rope_scale = 1,
                                .kv = kv};
    ok(t->ops->rope_kv(t->s, &a));
    return kv;
}

/* What was moved is what would be there had it been written to where it went, whatever the device's layout. */
static void move_check(const target *t, nrd_dtype type, int32_t block_tokens)
{
    const int32_t n = MOVE_BLOCKS * block_tokens;
    const size_t bytes = MOVE_BLOCKS * t->ops->kv_block_bytes(t->dev, type, block_tokens, MOVE_HEADS, MOVE_DIM);
    char *rows = host_as(kind->acts[0], (int64_t)n * 3 * MOVE_HEADS * MOVE_DIM, 1), *want = host(bytes), *got = host(bytes);
    int32_t pairs[2 * MOVE_PAIRS], *from = host((size_t)n * 4);
    nrd_kv_layer kv[2];

    for (int32_t i = 0; i < n; i++) {
        from[i] = i;
    }
    kv[0] = cache_of_rows(t, type, block_tokens, rows, from);
    kv[1] = cache_of_rows(t, type, block_tokens, rows, from);
    for (int i = 0; i < MOVE_PAIRS; i++) { /* also to where one before it came from, and from where one went to */
        pairs[2 * i] = i % 5 == 4 ? pairs[2 * i - 1] : rnd_in(0, n - 1);
        pairs[2 * i + 1] = i % 5 == 2 ? pairs[2 * i - 2] : rnd_in(0, n - 1);
        from[pairs[2 * i + 1]] = from[pairs[2 * i]];
    }
    nrd_move_tokens_args a = {.n_layers = 2, .n_pairs = MOVE_PAIRS, .kv = kv, .pairs = pairs};
    ok(t->ops->move_tokens(t->s, &a));
    const nrd_kv_layer right = cache_of_rows(t, type, block_tokens, rows, from);
    dev_get(t, want, right.base, bytes);
    case_name("move_tokens of %s, blocks of %d", nrd_dtype_name(type), block_tokens);
    for (int l = 0; l < 2; l++) {
        dev_get(t, got, kv[l].base, bytes);
        same_bytes(t, l ? "second layer" : "first layer", got, want, bytes);
    }
    pairs[1] = n;
    nrd_error *err = t->ops->move_tokens(t->s, &a);
    verdict(t, "a place behind the last one is refused", err != NULL);
    nrd_error_free(err);
    case_end();
}

void check_cache(void)
{
    static const int32_t vocabs[] = {33, 1000, 50257};
    for (int i = 0; i < n_targets; i++) {
        for (int v = 0; v < 3; v++) {
            counts_check(&targets[i], vocabs[v]);
        }
        copy_check(&targets[i], NRD_DTYPE_BF16, 16);
        copy_check(&targets[i], NRD_DTYPE_I8, 32);
        copy_check(&targets[i], NRD_DTYPE_F32, 64);
        move_check(&targets[i], NRD_DTYPE_BF16, 16);
        move_check(&targets[i], NRD_DTYPE_I8, 32);
        move_check(&targets[i], NRD_DTYPE_F32, 5);
    }
}
