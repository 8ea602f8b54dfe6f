/* SPDX-License-Identifier: Apache-2.0
 * backends/python/ipc.h - what the server and a stub process share: one memory file.
 *
 * Purpose   Layout of the file, commands, calls, an allocator for each side's half, and the bytes
 *           of messages. Used by the backend library and by the Python extension of the stub, so
 *           it needs the C library alone.
 *
 *               [control page][half of the server][half of the stub]
 *
 *           The file is made with memfd_create: it has no name, so nothing can be left behind
 *           when a process dies. It is sparse and has its full size from the start; pages exist
 *           once they are written. Each half is handed out by one process only, whose bookkeeping
 *           is private memory: a crash of the other side cannot damage it.
 * Owner     Commands (server -> stub, one at a time): the thread that sent one waits for its reply.
 *           Calls (stub -> server, many threads): entries of a ring; answers arrive in slots.
 *           Blocks: allocated by the half's owner; the receiver gives a block back through the
 *           returned ring of that half, or the owner frees it itself.
 * Units     Offsets and lengths in bytes from the start of the file.
 * Errors    Allocation gives 0, reading past a message sets `bad`; nothing aborts.
 * Lifetime  The mapping lives until both processes have let go of it.
 */
#ifndef NRD_BACKENDS_PYTHON_IPC_H
#define NRD_BACKENDS_PYTHON_IPC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NRD_PY_ABI = 1,
    NRD_PY_CALLS = 256,     /* entries of the call ring */
    NRD_PY_SLOTS = 512,     /* calls that may wait for an answer at the same time */
    NRD_PY_RETURNS = 16384, /* entries of a returned ring */
    NRD_PY_INLINE = 16384,  /* tensors up to this size travel inside the message */
};

/* Commands of the server. The reply carries the same number. */
typedef enum {
    NRD_PY_CMD_HELLO = 1,    /* sent by the stub alone, when its module is up */
    NRD_PY_CMD_AUTOCOMPLETE, /* configuration as JSON -> configuration as JSON */
    NRD_PY_CMD_INITIALIZE,   /* arguments of initialize as JSON -> "1" when the model has is_ready */
    NRD_PY_CMD_EXECUTE,      /* requests -> responses */
    NRD_PY_CMD_FINALIZE,
    NRD_PY_CMD_READY,        /* on the second command channel -> "1" or "0" */
} nrd_py_command;

/* Calls of the stub; a and b are arguments without a body. */
typedef enum {
    NRD_PY_CALL_LOG = 1,     /* no answer. a: level, b: line; body: file, message */
    NRD_PY_CALL_SEND,        /* a: request, b: flags; body: response or nothing */
    NRD_PY_CALL_DROP,        /* no answer. a: request whose response sender is gone */
    NRD_PY_CALL_CANCELLED,   /* a: request -> 0 or 1 */
    NRD_PY_CALL_INFER,       /* b: decoupled; body: request -> a: id; the first response */
    NRD_PY_CALL_NEXT,        /* a: id -> the next response; a: 1 while more may follow */
    NRD_PY_CALL_INFER_CANCEL,/* a: id */
    NRD_PY_CALL_INFER_DROP,  /* no answer. a: id */
    NRD_PY_CALL_FAMILY_NEW,  /* a: kind; body: name, description -> a: handle */
    NRD_PY_CALL_FAMILY_DELETE,
    NRD_PY_CALL_METRIC_NEW,  /* a: family; body: labels, buckets -> a: handle */
    NRD_PY_CALL_METRIC_DELETE,
    NRD_PY_CALL_METRIC_INCREMENT, /* a: handle, b: bits of the double */
    NRD_PY_CALL_METRIC_SET,
    NRD_PY_CALL_METRIC_OBSERVE,
    NRD_PY_CALL_METRIC_VALUE, /* -> a: bits of the double */
    NRD_PY_CALL_LOAD,         /* body: name, config, files */
    NRD_PY_CALL_UNLOAD,       /* a: with dependents; body: name */
    NRD_PY_CALL_IS_READY,     /* body: name, version -> a */
} nrd_py_call;

/* How the bytes of a tensor travel. */
typedef enum {
    NRD_PY_DATA_INSIDE = 0,   /* offset into the file, part of the message's own block */
    NRD_PY_DATA_BLOCK,        /* offset of a block of its own, which now is the receiver's */
    NRD_PY_DATA_BORROWED,     /* offset of bytes that stay the sender's until the answer */
    NRD_PY_DATA_REMOTE,       /* address in the stub, readable until the answer */
} nrd_py_data;

/* The byte before a response. */
typedef enum {
    NRD_PY_RESPONSE_NONE = 0,
    NRD_PY_RESPONSE_OK,
    NRD_PY_RESPONSE_ERROR,
} nrd_py_response;

/* A command channel: `seq` counts messages and is what the other side sleeps on. */
typedef struct nrd_py_channel {
    _Atomic uint32_t seq;
    _Atomic uint32_t sleepers;
    uint32_t type;
    uint32_t failed; /* replies: the body is an error text */
    uint64_t offset, bytes;
} nrd_py_channel;

typedef struct nrd_py_slot {
    _Atomic uint32_t done; /* 0 waiting, 1 answered */
    uint32_t failed;       /* 0, or 1 + TRITONSERVER_Error_Code; the body is the text */
    uint64_t a;
    uint64_t offset, bytes;
} nrd_py_slot;

typedef struct nrd_py_entry {
    uint32_t type, slot;
    uint64_t a, b;
    uint64_t offset, bytes;
} nrd_py_entry;

/* Blocks that the receiver is done with; one producing process, one consuming process. */
typedef struct nrd_py_returns {
    _Atomic uint32_t head, tail;
    uint64_t offset[NRD_PY_RETURNS];
} nrd_py_returns;

typedef struct nrd_py_control {
    uint32_t abi, decoupled;
    uint64_t file_bytes, server_base, stub_base, half_bytes;
    uint64_t probe;                    /* address of a word in the stub that holds NRD_PY_PROBE */
    _Atomic uint32_t heartbeat;        /* counts up while the stub's watcher thread runs */
    _Atomic uint32_t server_gone;      /* the server's side is closed: no answer will come */
    nrd_py_channel command, reply;     /* server -> stub -> server */
    _Atomic uint32_t reply_read;       /* number of the last reply whose data the server has */
    nrd_py_channel aux, aux_reply;     /* the same for readiness, beside a running command */
    _Atomic uint32_t call_head, call_tail, call_sleepers, call_space;
    nrd_py_entry calls[NRD_PY_CALLS];
    nrd_py_slot slots[NRD_PY_SLOTS];
    nrd_py_returns to_server, to_stub; /* blocks given back to that side */
} nrd_py_control;

#define NRD_PY_NO_SLOT UINT32_MAX /* no answer is wanted */

#define NRD_PY_PROBE 0x4e65726569645079u

/* One side's view of the file. */
typedef struct nrd_py_map {
    uint8_t *base;
    nrd_py_control *ctl; /* = base */
    size_t bytes;
} nrd_py_map;

/* Makes and maps a file of up to 2 * want_half_bytes; takes less where limits ask for it. Returns
 * the descriptor (closed on exec), or -1 with errno. `name` shows up in /proc/<pid>/maps. */
int nrd_py_map_create(nrd_py_map *m, const char *name, uint64_t want_half_bytes);
/* Maps an existing file; false with errno set when that is impossible or not ours. */
bool nrd_py_map_open(nrd_py_map *m, int fd);
void nrd_py_map_close(nrd_py_map *m);
/* offset .. offset + bytes is inside one of the halves. */
bool nrd_py_map_has(const nrd_py_map *m, uint64_t offset, uint64_t bytes);

/* ---- sleeping and waking (futex) ---- */

void nrd_py_wake(_Atomic uint32_t *word, int n);
/* Until *word != seen, a wake-up or the time is over; may return early. timeout_ms < 0: no limit. */
void nrd_py_sleep(_Atomic uint32_t *word, uint32_t seen, int timeout_ms);
/* Writes a message and wakes the receiver. */
void nrd_py_post(nrd_py_channel *c, uint32_t type, uint32_t failed, uint64_t offset,
                 uint64_t bytes);
/* One wait for a message after number `seen`: true when there is one. */
bool nrd_py_await(nrd_py_channel *c, uint32_t seen, int timeout_ms);

/* ---- a half of the file ---- */

typedef struct nrd_py_heap nrd_py_heap;

/* `back` is where the other side returns blocks. NULL on no memory. */
nrd_py_heap *nrd_py_heap_new(uint8_t *file, uint64_t base, uint64_t bytes, nrd_py_returns *back);
void nrd_py_heap_free(nrd_py_heap *h); /* not the file */
/* Offset of a block aligned to 64 bytes (4096 from 64 KiB on); 0 when the half is full. */
uint64_t nrd_py_heap_alloc(nrd_py_heap *h, uint64_t bytes);
void nrd_py_heap_release(nrd_py_heap *h, uint64_t offset);
uint64_t nrd_py_heap_used(nrd_py_heap *h); /* bytes in blocks that are not free */

/* The producing end of a returned ring. */
typedef struct nrd_py_returner {
    nrd_py_returns *ring;
    pthread_mutex_t mu;
    uint64_t *late; /* what did not fit; tried again later. guarded by mu */
    size_t n_late, cap_late;
} nrd_py_returner;

void nrd_py_returner_init(nrd_py_returner *r, nrd_py_returns *ring);
void nrd_py_returner_fini(nrd_py_returner *r);
void nrd_py_return(nrd_py_returner *r, uint64_t offset);

/* ---- the bytes of a message ---- */

/* Growing private buffer; `failed` after an allocation did not work out. */
typedef struct nrd_py_writer {
    uint8_t *data;
    size_t len, cap;
    bool failed;
} nrd_py_writer;

void nrd_py_put_u8(nrd_py_writer *w, uint8_t v);
void nrd_py_put_u32(nrd_py_writer *w, uint32_t v);
void nrd_py_put_u64(nrd_py_writer *w, uint64_t v);
void nrd_py_put_str(nrd_py_writer *w, const char *s, size_t n); /* u32 length, bytes, a NUL */
void nrd_py_put_cstr(nrd_py_writer *w, const char *s);
void nrd_py_writer_fini(nrd_py_writer *w);

typedef struct nrd_py_reader {
    const uint8_t *p, *end;
    bool bad;
} nrd_py_reader;

uint8_t nrd_py_get_u8(nrd_py_reader *r);
uint32_t nrd_py_get_u32(nrd_py_reader *r);
uint64_t nrd_py_get_u64(nrd_py_reader *r);
/* Borrows from the message; "" when bad. */
const char *nrd_py_get_str(nrd_py_reader *r, size_t *out_n);
const void *nrd_py_get(nrd_py_reader *r, size_t n); /* NULL when bad */

/* ---- tensors inside a message ----
 *
 * A message with tensors starts with the u64 offset of its inline data (from its own start). */

enum { NRD_PY_MAX_DIMS = 64 };

typedef struct nrd_py_tensor {
    const char *name; /* borrows from the message */
    uint32_t dtype;   /* TRITONSERVER_DataType */
    uint32_t n_dims;
    int64_t dims[NRD_PY_MAX_DIMS];
    uint64_t bytes;
    nrd_py_data how;
    uint64_t where;   /* offset in the file, or an address when REMOTE */
} nrd_py_tensor;

typedef struct nrd_py_piece {
    const void *data;
    uint64_t bytes, at;
} nrd_py_piece;

typedef struct nrd_py_message {
    nrd_py_writer w;
    nrd_py_heap *heap;
    uint8_t *file;
    nrd_py_piece *pieces;    /* inline data, copied by finish: must live until then */
    size_t n_pieces, cap_pieces;
    uint64_t inline_bytes;
    uint8_t *block;          /* where the current tensor's data goes; NULL: inline */
    uint64_t block_left, piece_left;
    uint64_t *blocks;        /* blocks that the message hands over */
    size_t n_blocks, cap_blocks;
} nrd_py_message;

/* Starts a message, keeping memory from the last one. */
void nrd_py_message_begin(nrd_py_message *m, nrd_py_heap *heap, uint8_t *file);
/* A tensor whose `bytes` follow in one or more calls of nrd_py_message_data. */
void nrd_py_message_tensor(nrd_py_message *m, const char *name, size_t name_len, uint32_t dtype,
                           const int64_t *dims, uint32_t n_dims, uint64_t bytes);
void nrd_py_message_data(nrd_py_message *m, const void *data, uint64_t n);
/* A tensor whose bytes already are somewhere; a BLOCK is taken always. */
void nrd_py_message_tensor_at(nrd_py_message *m, const char *name, size_t name_len, uint32_t dtype,
                              const int64_t *dims, uint32_t n_dims, uint64_t bytes, nrd_py_data how,
                              uint64_t where);
/* Puts the message into a block of its own. false: no memory, and everything is given back. */
bool nrd_py_message_finish(nrd_py_message *m, uint64_t *out_offset, uint64_t *out_bytes);
void nrd_py_message_fini(nrd_py_message *m);

/* Starts reading a message with tensors at `offset`. */
void nrd_py_reader_begin(nrd_py_reader *r, uint64_t *out_data_at, const nrd_py_map *map,
                         uint64_t offset, uint64_t bytes);
/* `data_at` from above. false and r->bad when it does not hold together. */
bool nrd_py_get_tensor(nrd_py_reader *r, const nrd_py_map *map, uint64_t data_at,
                       nrd_py_tensor *out);

#endif
