/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill_hopper.cuh - the warpgroup of attention_prefill_hopper.cu that finds the pieces of
 * work and brings their rows of Q and their tiles of K and V to shared memory.
 */
#ifndef NRD_OPS_ATTENTION_PREFILL_HOPPER_CUH
#define NRD_OPS_ATTENTION_PREFILL_HOPPER_CUH

#include "device/ops/attention.cuh"
#include "device/ops/hopper.cuh"

enum { H_ROWS = 128, H_TILE = 64, H_STAGES = 4, H_PIECES = 4, H_THREADS = 384, H_WARPS = 8 };
enum { H_RAW = 3 }; /* tiles of F8 as they lie in the cache, on their way to the ring */
enum { H_COUNTER = 0, H_DONE = 1 }; /* of the stream's counters: the next piece, blocks that ended */

struct hopper_work {
    int seq, q0, row0, n_rows, first_pos, last_pos, ctx;
    int lo, sinks, n_tiles, kvh;
    int seen_from, seen_to; /* tiles that all rows see whole */
};

/* What a row of a piece sees: tokens behind `after` (and the sinks) up to `upto`. */
struct hopper_row {
    int upto, after;
};

/* In front of Q and the ring. Barriers of a tile: brought, used (raw: brought as F8); of Q's rows:
 * brought, used; of a piece: found, done. */
struct hopper_front {
    uint64_t full[H_STAGES], empty[H_STAGES], q_full, q_empty, found[H_PIECES], taken[H_PIECES], alone,
        raw[H_RAW];
    int next[2];
    hopper_work work[H_PIECES];
    hopper_row rows[H_PIECES][H_ROWS];
};
enum { H_FRONT = 5120 };
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

static __device__ __forceinline__ bool find_work(const attn_params &a, int s0, int slot, hopper_work *w)
{
    const int t0 = s0 > 0 ? s0 : 0; /* sequences before s0 have one token each */
    int lo_s = s0, hi_s = a.n_seqs - 1;

    while (lo_s < hi_s) { /* the last sequence whose first slot is not behind ours */
        const int mid = (lo_s + hi_s + 1) / 2;
        if ((int)((int64_t)(a.q_start[mid] - t0) * a.group / H_ROWS) + mid - s0 <= slot) {
            lo_s = mid;
        } else {
            hi_s = mid - 1;
        }
    }
    const int q0 = a.q_start[lo_s], rows = (a.q_start[lo_s + 1] - q0) * a.group;
    const int row0 = (slot - (int)((int64_t)(q0 - t0) * a.group / H_ROWS) - (lo_s - s0)) * H_ROWS;
    if (row0 < 0 || row0 >= rows || rows <= (s0 > 0 ? 0 : (int)DECODE_ROWS)) {
        return false;
    }
    w->seq = lo_s;
    w->q0 = q0;
    w->row0 = row0;
    w->n_rows = rows - row0 < H_ROWS ? rows - row0 : H_ROWS;
    w->ctx = a.ctx_len[lo_s];
    w->first_pos = a.positions[q0 + row0 / a.group];
    w->last_pos = a.positions[q0 + (row0 + w->n_rows - 1) / a.group];
    w->lo = w->sinks = 0;
    const int unseen = last_unseen(a, w->first_pos);
    if (unseen >= 0) {
        w->lo = (unseen + 1) / H_TILE;
        w->sinks = (a.n_sink + H_TILE - 1) / H_TILE;
        w->sinks = w->sinks < w->lo ? w->sinks : w->lo;
    }
    const int end = w->last_pos + 1 < w->ctx ? w->last_pos + 1 : w->ctx;
    w->n_tiles = w->sinks + (end + H_TILE - 1) / H_TILE - w->lo;
    const int behind = last_unseen(a, w->last_pos), first = w->sinks - w->lo; /* the place of tile 0 */
    w->seen_from = behind < 0 ? 0 : behind / H_TILE + 1 + first;
    w->seen_to = (w->first_pos + 1 < w->ctx ? w->first_pos + 1 : w->ctx) / H_TILE + first;
    return true;
}

static __device__ __forceinline__ int tile_of(const hopper_work &w, int i) /* its block in the table */
{
    return i < w.sinks ? i : w.lo + i - w.sinks;
}

static __device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
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
    int t0 = 0; /* tiles the ring has had before this piece */
    /* of the piece */
    hopper_work w;
    const int32_t *table;
    const C *cache;
    int raw_at = 0; /* F8: tiles brought to shared memory before this one */

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
        const int block = block_at(i), behind = w.ctx - tile_of(w, i) * H_TILE;
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
    __device__ __forceinline__ void ask_f8(int i) const
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
        f8_to_f16(x.x, &first.x, &first.y);
        f8_to_f16(x.y, &first.z, &first.w);
        f8_to_f16(x.z, &second.x, &second.y);
        f8_to_f16(x.w, &second.z, &second.w);
        to[0] = first;
        to[apart] = second;
    }
    /* Tile i, which is on its way, in 16 bits; then tile i + H_RAW is asked for. */
    __device__ __forceinline__ void give_f8(int i)
    {
        const int behind = w.ctx - tile_of(w, i) * H_TILE, at = raw_at + i;
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
            ask_f8(i + H_RAW);
        }
    }

    /* The piece's rows of Q, a copy a thread, and what each row sees. n: pieces before this one. */
    __device__ __forceinline__ void bring_rows(int n)
    {
        const int r = tid < w.n_rows ? tid : w.n_rows - 1;
        const int tok = w.q0 + (w.row0 + r) / a.group, head = w.kvh * a.group + (w.row0 + r) % a.group;
        const int pos = a.positions[tok];

        if (n >= H_PIECES) {
            mbar_wait(smem_u32(front->taken + n % H_PIECES), (uint32_t)(n / H_PIECES - 1) & 1);
        }
        front->rows[n % H_PIECES][tid] = {pos < w.ctx ? pos : w.ctx - 1, last_unseen(a, pos)};
        if (n >= 1) {
            mbar_wait(smem_u32(&front->q_empty), (uint32_t)(n - 1) & 1);
        }
        if (tid == 0) {
            front->work[n % H_PIECES] = w;
            mbar_expect(smem_u32(&front->q_full), (uint32_t)(w.n_rows * HD * 2));
        }
        if (tid < w.n_rows) {
            bulk_copy(smem_u32(raw) + H_FRONT + tid * sizes::Q_PITCH,
                      (const T *)a.q + tok * a.q_stride + (int64_t)head * HD, HD * 2,
                      smem_u32(&front->q_full));
        }
        named_sync(1, 128);
        if (tid == 0) {
            mbar_arrive(smem_u32(front->found + n % H_PIECES));
        }
    }

    __device__ __forceinline__ void bring_piece(int n)
    {
        table = a.block_table + (int64_t)w.seq * a.table_stride;
        cache = (const C *)a.cache + (int64_t)w.kvh * ELEMS;
        if constexpr (WIDEN) {
            for (int i = 0; i < H_RAW && i < w.n_tiles; i++) {
                ask_f8(i);
            }
        }
        bring_rows(n);
        for (int i = 0; i < w.n_tiles; i++) {
            if constexpr (WIDEN) {
                give_f8(i);
            } else {
                give(i);
            }
        }
        raw_at += w.n_tiles;
        t0 += w.n_tiles;
    }

    /* Finds pieces and brings them until none is left; a piece of no tiles tells the others so. */
    __device__ __forceinline__ void run(int s0, int n_slots, int *counters)
    {
        const int n_pieces = n_slots * a.g.n_kv;
        int n = 0;

        for (int asked = 0;; asked++) {
            if (tid == 0) {
                front->next[asked & 1] =
                    asked == 0 ? (int)blockIdx.x : (int)gridDim.x + atomicAdd(counters + H_COUNTER, 1);
            }
            named_sync(1, 128);
            const int piece = front->next[asked & 1];
            if (piece >= n_pieces) {
                break;
            }
            if (find_work(a, s0, n_slots - 1 - piece / a.g.n_kv, &w)) {
                w.kvh = piece % a.g.n_kv;
                bring_piece(n++);
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
