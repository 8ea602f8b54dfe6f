/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill_hopper.cuh - the warpgroup of attention_prefill_hopper.cu that finds the pieces of
 * work and brings their rows of Q and their tiles of K and V to shared memory.
 */
#ifndef NRD_OPS_ATTENTION_PREFILL_HOPPER_CUH
#define NRD_OPS_ATTENTION_PREFILL_HOPPER_CUH

#include "device/ops/attention.cuh"
#include "device/ops/hopper.cuh"

enum { H_ROWS = 128, H_TILE = 64, H_STAGES = 4, H_PIECES = 4, H_THREADS = 384, H_WARPS = 8 };
enum { H_RAW = 3 }; /* tiles of 8 bits as they lie in the cache, on their way to the ring */
enum { H_COUNTER = 0, H_DONE = 1 }; /* of the stream's counters: the next item, blocks that ended */

/* Rows of a (sequence, KV head) that a block does in turn, a piece of up to H_ROWS after the other. */
struct hopper_item {
    int seq, q0, row0, n_rows, kvh, ctx;
    bool keeps; /* the ring has room for all tiles: they are brought once */
};

struct hopper_work {
    int q0, row0, n_rows, first_pos, last_pos, kvh;
    int lo, sinks, n_tiles;
    int seen_from, seen_to; /* tiles that all rows see whole */
    int at;                 /* tiles the ring has had before the first */
    bool keeps;             /* the next piece reads these tiles, too */
};

/* What a row of a piece sees: tokens behind `after` (and the sinks) up to `upto`; its row of the output. */
struct hopper_row {
    int upto, after, out;
};

/* In front of Q and the ring. Barriers of a tile: brought, used (raw: brought in 8 bits); of Q's rows:
 * brought, used; of a piece: found, done. */
struct hopper_front {
    uint64_t full[H_STAGES], empty[H_STAGES], q_full, q_empty, found[H_PIECES], taken[H_PIECES], alone,
        raw[H_RAW], nobody[H_STAGES]; /* nobody: given back for nobody */
    int next[2];
    hopper_work work[H_PIECES];
    hopper_row rows[H_PIECES][H_ROWS];
};
enum { H_FRONT = 7168 };
static_assert(sizeof(hopper_front) <= H_FRONT, "Q follows");

/* Bytes of a row of Q in shared memory, where ldmatrix finds eight of them in different banks; of a tile of K or of
 * V, whose elements have ELEM bytes in the ring; where the rows of Q in F8, the ring and the tiles of F8 begin. */
template <int HD, int ELEM> struct hopper_sizes {
    static constexpr int Q_PITCH = HD * 2 + 16;
    static constexpr int TILE = H_TILE * HD * ELEM;
    static constexpr int Q_F8 = (H_FRONT + H_ROWS * Q_PITCH + 1023) / 1024 * 1024;
    static constexpr int RING = Q_F8 + (ELEM == 1 ? H_ROWS * HD : 0);
    static constexpr int RAW = RING + H_STAGES * 2 * TILE; /* K and V of TILE / 2 each */
    template <typename C> static constexpr int all() { return RAW + ((int)sizeof(C) < ELEM ? H_RAW * TILE : 0); }
};

static __device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Item `slot`, of up to `rows` rows; false: there is none. By whole warps. Sequence s, whose rows begin at r, has slots from
 * r / rows + s - s0 on: its rows begin one of their own. Those before s0 have one token each. */
static __device__ __forceinline__ bool find_item(const attn_params &a, int s0, int rows, int slot, hopper_item *t)
{
    const int t0 = s0 > 0 ? s0 : 0;
    int seq = s0 - 1, n = 64; /* the last whose first slot is not behind ours; a search by halves would wait for a load each time */

#pragma unroll 1
    for (int s = s0 + (int)threadIdx.x % 32; n == 64; s += 64) {
        n = 0;
#pragma unroll
        for (int x = 0; x < 64; x += 32) {
            const bool is_before = s + x < a.n_seqs && (a.q_start[s + x] - t0) * a.group < (slot - s - x + s0 + 1) * rows;
            n += __popc(__ballot_sync(0xffffffffu, is_before));
        }
        seq += n;
    }
    const int q0 = a.q_start[seq], all = (a.q_start[seq + 1] - q0) * a.group;
    const int row0 = (slot - seq + s0 - (q0 - t0) * a.group / rows) * rows;
    if (row0 >= all || all <= (s0 > 0 ? 0 : (int)DECODE_ROWS)) {
        return false;
    }
    t->seq = seq;
    t->q0 = q0;
    t->row0 = row0;
    t->n_rows = all - row0 < rows ? all - row0 : rows;
    t->ctx = a.ctx_len[seq];
    t->keeps = false;
    if (t->n_rows > H_ROWS && t->ctx <= H_STAGES * H_TILE) {
        t->keeps = last_unseen(a, a.positions[q0 + (row0 + t->n_rows - 1) / a.group]) < 0;
    }
    return true;
}

/* The piece that begins at `row` of the item. */
static __device__ __forceinline__ void look(const attn_params &a, const hopper_item &t, int row, hopper_work *w)
{
    w->q0 = t.q0;
    w->row0 = t.row0 + row;
    w->n_rows = t.n_rows - row < H_ROWS ? t.n_rows - row : H_ROWS;
    w->kvh = t.kvh;
    w->first_pos = a.positions[w->q0 + w->row0 / a.group];
    w->last_pos = a.positions[w->q0 + (w->row0 + w->n_rows - 1) / a.group];
    w->keeps = t.keeps && row + H_ROWS < t.n_rows;
    w->lo = w->sinks = 0;
    const int unseen = last_unseen(a, w->first_pos);
    if (unseen >= 0) {
        w->lo = (unseen + 1) / H_TILE;
        w->sinks = (a.n_sink + H_TILE - 1) / H_TILE;
        w->sinks = w->sinks < w->lo ? w->sinks : w->lo;
    }
    const int end = w->last_pos + 1 < t.ctx ? w->last_pos + 1 : t.ctx;
    w->n_tiles = w->sinks + (end + H_TILE - 1) / H_TILE - w->lo;
    const int behind = last_unseen(a, w->last_pos), first = w->sinks - w->lo; /* the place of tile 0 */
    w->seen_from = behind < 0 ? 0 : behind / H_TILE + 1 + first;
    w->seen_to = (w->first_pos + 1 < t.ctx ? w->first_pos + 1 : t.ctx) / H_TILE + first;
}

static __device__ __forceinline__ int tile_of(const hopper_work &w, int i) /* its block in the table */
{
    return i < w.sinks ? i : w.lo + i - w.sinks;
}

/* 128 threads. ELEM: bytes of an element in the ring. */
template <typename T, typename C, int HD, int ELEM> struct hopper_bringer {
    static constexpr bool WIDEN = (int)sizeof(C) < ELEM;
    static constexpr int ELEMS = H_TILE * HD, BYTES = ELEMS * ELEM, MINE = WIDEN ? ELEMS / 16 / 128 : 1;
    static constexpr int UNIT = 16 / ELEM; /* tokens of V that lie side by side */
    using sizes = hopper_sizes<HD, ELEM>;
    using elem = std::conditional_t<ELEM == 1, uint8_t, uint16_t>;

    const attn_params &a;
    char *raw;
    hopper_front *front;
    const int tid = (int)threadIdx.x;
    uint32_t alone_parity = 0;
    int t0 = 0; /* tiles the ring has had before this piece's first */
    int had = 0; /* of this piece's tiles: those that the piece before has left in the ring */
    hopper_item item;
    hopper_work w; /* the piece */
    const int32_t *table;
    const C *cache;
    int raw_at = 0; /* 8 bits: tiles brought to shared memory before this one */

    __device__ __forceinline__ hopper_bringer(const attn_params &params, char *smem)
        : a(params), raw(smem), front((hopper_front *)smem)
    {
    }

    __device__ __forceinline__ int block_at(int i) const
    {
        return i < w.n_tiles ? table[tile_of(w, i)] : -1;
    }
    __device__ __forceinline__ const C *v_of(const C *k) const
    {
        return k + (int64_t)a.g.n_kv * ELEMS;
    }
    __device__ __forceinline__ const C *k_of(int block) const
    {
        return cache + (int64_t)(block < 0 ? 0 : block) * a.g.block_elems;
    }
    __device__ __forceinline__ elem *slot_of(int i) const
    {
        return (elem *)(raw + sizes::RING + (size_t)((t0 + i) % H_STAGES) * 2 * BYTES);
    }
    __device__ __forceinline__ uint32_t full_of(int i) const
    {
        return smem_u32(front->full + (t0 + i) % H_STAGES);
    }
    __device__ __forceinline__ void wait_empty(int i) const
    {
        if (t0 + i >= H_STAGES) {
            mbar_wait(smem_u32(front->empty + (t0 + i) % H_STAGES),
                      (uint32_t)((t0 + i) / H_STAGES - 1) & 1);
        }
    }

    /* What was stored by all is a brought tile. */
    __device__ __forceinline__ void stored(int i) const
    {
        fence_async_proxy();
        named_sync(1, 128);
        if (tid == 0) {
            mbar_arrive(full_of(i));
        }
    }
    /* V's tokens from `from` on, which may be anything, become zeros. */
    __device__ __forceinline__ void clear_v(elem *vs, int from) const
    {
        for (int x = tid; x < (H_TILE - from) * HD; x += 128) {
            const int tok = from + x / HD, d = x % HD;
            vs[((tok / UNIT) * HD + d) * UNIT + tok % UNIT] = 0;
        }
    }

    __device__ __forceinline__ void copy_tile(elem *to, int block, uint32_t bar) const
    {
        const C *k = k_of(block);
        if (tid == 0) {
            mbar_expect(bar, 2 * BYTES);
            bulk_copy(smem_u32(to), k, BYTES, bar);
            bulk_copy(smem_u32(to) + BYTES, v_of(k), BYTES, bar);
        }
    }
    /* A tile of elements as they lie: the copy engine's work, unless it is not whole. */
    __device__ __forceinline__ void give(int i)
    {
        const int block = block_at(i), behind = item.ctx - tile_of(w, i) * H_TILE;
        elem *ks = slot_of(i);

        wait_empty(i);
        if (behind >= H_TILE && block >= 0) {
            copy_tile(ks, block, full_of(i));
            return;
        }
        if (block >= 0) {
            copy_tile(ks, block, smem_u32(&front->alone));
            mbar_wait(smem_u32(&front->alone), alone_parity);
            alone_parity ^= 1;
            clear_v(ks + ELEMS, behind);
        } else { /* of K, too: a sequence may have no memory, and a score must be a number there */
            for (int x = tid; x < 2 * BYTES / 16; x += 128) {
                ((uint4 *)ks)[x] = make_uint4(0, 0, 0, 0);
            }
        }
        stored(i);
    }

    /* Tile i on its way, in the place of the one H_RAW before it. */
    __device__ __forceinline__ void ask_bytes(int i) const
    {
        const int block = block_at(i), slot = (raw_at + i) % H_RAW;
        const uint32_t bar = smem_u32(front->raw + slot), to = smem_u32(raw) + sizes::RAW + slot * BYTES;

        if (tid == 0 && block >= 0) {
            mbar_expect(bar, BYTES);
            bulk_copy(to, k_of(block), BYTES / 2, bar);
            bulk_copy(to + BYTES / 2, v_of(k_of(block)), BYTES / 2, bar);
        } else if (tid == 0) {
            mbar_arrive(bar); /* nothing comes: zeros */
        }
    }
    /* Sixteen elements to two units of eight, `apart` units from each other. */
    static __device__ __forceinline__ void store_wide(uint4 *to, int apart, const uint4 &x)
    {
        uint4 first, second;
        to_f16<C>(x.x, &first.x, &first.y);
        to_f16<C>(x.y, &first.z, &first.w);
        to_f16<C>(x.z, &second.x, &second.y);
        to_f16<C>(x.w, &second.z, &second.w);
        to[0] = first;
        to[apart] = second;
    }
    /* Tile i, which is on its way, in 16 bits; then tile i + H_RAW is asked for. */
    __device__ __forceinline__ void give_bytes(int i)
    {
        const int behind = item.ctx - tile_of(w, i) * H_TILE, at = raw_at + i;
        const bool there = block_at(i) >= 0;
        const uint4 *from = (const uint4 *)(raw + sizes::RAW + at % H_RAW * BYTES);
        elem *ks = slot_of(i), *vs = ks + ELEMS;
        uint4 k[MINE], v[MINE];

        mbar_wait(smem_u32(front->raw + at % H_RAW), (uint32_t)(at / H_RAW) & 1);
#pragma unroll
        for (int x = 0; x < MINE; x++) {
            k[x] = there ? from[tid + x * 128] : make_uint4(0, 0, 0, 0);
            v[x] = there ? from[ELEMS / 16 + tid + x * 128] : make_uint4(0, 0, 0, 0);
        }
        wait_empty(i);
#pragma unroll
        for (int x = 0; x < MINE; x++) {
            const int p = tid + x * 128; /* K [HD / 16][64 tokens], V [64 / 16][HD] pieces of 16 */
            store_wide((uint4 *)ks + (p / H_TILE) * 2 * H_TILE + p % H_TILE, H_TILE, k[x]);
            store_wide((uint4 *)vs + (p / HD) * 2 * HD + p % HD, HD, v[x]);
        }
        if (behind < H_TILE) {
            named_sync(1, 128);
            clear_v(vs, behind);
        }
        stored(i);
        if (i + H_RAW < w.n_tiles) {
            ask_bytes(i + H_RAW);
        }
    }

    /* The rows of Q, 16 bytes a lane: `mine` is this thread's. */
    __device__ __forceinline__ void copy_rows(const T *mine) const
    {
        constexpr int UNITS = HD / 8, ROWS = 32 / UNITS; /* of a row; of an instruction */
        const int lane = tid % 32, unit = lane % UNITS, first = tid & ~31;

#pragma unroll 2
        for (int x = 0; x < 32; x += ROWS) {
            const int r = x + lane / UNITS;
            const T *from = (const T *)__shfl_sync(0xffffffffu, (unsigned long long)mine, r & 31);
            if (lane < ROWS * UNITS && r < 32 && first + r < w.n_rows) {
                copy16_or_zero(smem_u32(raw) + H_FRONT + (first + r) * sizes::Q_PITCH + unit * 16, from + unit * 8, true);
            }
        }
        mbar_arrive_copied(smem_u32(&front->q_full));
    }

    /* The piece's rows of Q and what each row sees. n: pieces before this one. */
    __device__ __forceinline__ void bring_rows(int n)
    {
        const int r = tid < w.n_rows ? tid : w.n_rows - 1;
        const int tok = w.q0 + (w.row0 + r) / a.group, head = w.kvh * a.group + (w.row0 + r) % a.group;
        const int pos = a.positions[tok];

        if (n >= H_PIECES) {
            mbar_wait(smem_u32(front->taken + n % H_PIECES), (uint32_t)(n / H_PIECES - 1) & 1);
        }
        front->rows[n % H_PIECES][tid] = {pos < item.ctx ? pos : item.ctx - 1, last_unseen(a, pos), tok * a.n_heads + head};
        if (n >= 1) {
            mbar_wait(smem_u32(&front->q_empty), (uint32_t)(n - 1) & 1);
        }
        if (tid == 0) {
            front->work[n % H_PIECES] = w;
        }
        copy_rows((const T *)a.q + tok * a.q_stride + (int64_t)head * HD);
        named_sync(1, 128);
        if (tid == 0) {
            mbar_arrive(smem_u32(front->found + n % H_PIECES));
        }
    }

    __device__ __forceinline__ void bring_piece(int n)
    {
        if constexpr (WIDEN) {
            for (int i = had; i < had + H_RAW && i < w.n_tiles; i++) {
                ask_bytes(i);
            }
        }
        bring_rows(n);
        for (int i = had; i < w.n_tiles; i++) {
            if constexpr (WIDEN) {
                give_bytes(i);
            } else {
                give(i);
            }
        }
    }

    /* The item's pieces; n: pieces before them, and how many there are then. */
    __device__ __forceinline__ int bring_item(int n)
    {
        table = a.block_table + (int64_t)item.seq * a.table_stride;
        cache = (const C *)a.cache + (int64_t)item.kvh * ELEMS;
        for (int row = 0; row < item.n_rows; row += H_ROWS) {
            look(a, item, row, &w);
            w.n_tiles = w.n_tiles > had ? w.n_tiles : had; /* who reads kept tiles last gives all of them back */
            w.at = t0;
            bring_piece(n++);
            had = w.n_tiles;
            if (!w.keeps) {
                raw_at += had;
                t0 += had;
                had = 0;
            }
        }
        return n;
    }

    /* Finds items and brings them until none is left; a piece of no tiles tells the others so. */
    __device__ __forceinline__ void run(int s0, int rows, int n_slots, int *counters)
    {
        const int n_items = n_slots * a.g.n_kv;
        int n = 0;

        for (int asked = 0;; asked++) {
            if (tid == 0) {
                front->next[asked & 1] =
                    asked == 0 ? (int)blockIdx.x : (int)gridDim.x + atomicAdd(counters + H_COUNTER, 1);
            }
            named_sync(1, 128);
            const int next = front->next[asked & 1];
            if (next >= n_items) {
                break;
            }
            if (find_item(a, s0, rows, n_slots - 1 - next / a.g.n_kv, &item)) {
                item.kvh = next % a.g.n_kv;
                n = bring_item(n);
            }
        }
        if (tid == 0) {
            if (n >= H_PIECES) {
                mbar_wait(smem_u32(front->taken + n % H_PIECES), (uint32_t)(n / H_PIECES - 1) & 1);
            }
            front->work[n % H_PIECES].n_tiles = 0;
            mbar_arrive(smem_u32(front->found + n % H_PIECES));
            if (atomicAdd(counters + H_DONE, 1) == (int)gridDim.x - 1) {
                counters[H_COUNTER] = counters[H_DONE] = 0; /* as the next kernel wants them */
            }
        }
    }
};

#endif
