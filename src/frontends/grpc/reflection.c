/* SPDX-License-Identifier: Apache-2.0
 * grpc.reflection: tells clients (grpcurl and the like) which services and messages there are.
 *
 * The descriptors of protos/ are part of the program (build.mk). A call is a stream of questions;
 * each is answered before the next is read, on the first queue. */
#include "frontends/grpc/rpc.h"

#include "base/str.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>

#include <string.h>

#ifndef NRD_GRPC_DESCRIPTORS
#error "NRD_GRPC_DESCRIPTORS names the file with the FileDescriptorSet"
#endif

/* The bytes of the file, between two symbols. */
__asm__(".section .rodata\n"
        ".global nrd_grpc_descriptors\n"
        ".hidden nrd_grpc_descriptors\n"
        "nrd_grpc_descriptors:\n"
        ".incbin \"" NRD_GRPC_DESCRIPTORS "\"\n"
        ".global nrd_grpc_descriptors_end\n"
        ".hidden nrd_grpc_descriptors_end\n"
        "nrd_grpc_descriptors_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char nrd_grpc_descriptors[], nrd_grpc_descriptors_end[];

typedef struct span {
    const char *p;
    size_t n;
} span;

/* ---- the wire format, reading ---- */

static bool read_varint(span *in, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && in->n > 0; shift += 7) {
        const uint8_t b = (uint8_t)*in->p;
        in->p++;
        in->n--;
        *out |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            return true;
        }
    }
    return false;
}

/* Next field; a field that is no string or message comes with an empty value. false: the end, or
 * what cannot be read. */
static bool next_field(span *in, unsigned *field, span *value)
{
    uint64_t key, n;
    if (in->n == 0 || !read_varint(in, &key)) {
        return false;
    }
    *field = (unsigned)(key >> 3);
    *value = (span){"", 0};
    switch (key & 7) {
    case 0:
        return read_varint(in, &n);
    case 1:
        n = 8;
        break;
    case 5:
        n = 4;
        break;
    case 2:
        if (!read_varint(in, &n)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (n > in->n) {
        return false;
    }
    if ((key & 7) == 2) {
        *value = (span){in->p, (size_t)n};
    }
    in->p += n;
    in->n -= (size_t)n;
    return true;
}

static bool find_field(span in, unsigned want, span *out)
{
    unsigned field;
    while (next_field(&in, &field, out)) {
        if (field == want) {
            return true;
        }
    }
    *out = (span){"", 0};
    return false;
}

static bool equal(span a, span b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* ---- descriptors: FileDescriptorSet.file = 1 ---- */

enum { FILE_NAME = 1, FILE_PACKAGE = 2, FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6 };

static bool next_file(span *set, span *file)
{
    unsigned field;
    while (next_field(set, &field, file)) {
        if (field == 1) {
            return true;
        }
    }
    return false;
}

static span all_files(void)
{
    return (span){nrd_grpc_descriptors, (size_t)(nrd_grpc_descriptors_end - nrd_grpc_descriptors)};
}

/* A file declares the symbol, or what it is nested in, or the service of the method. */
static bool declares(span file, span symbol)
{
    span package, part, name;
    unsigned field;
    find_field(file, FILE_PACKAGE, &package);
    if (symbol.n <= package.n + 1 || memcmp(symbol.p, package.p, package.n) != 0 ||
        symbol.p[package.n] != '.') {
        return false;
    }
    symbol.p += package.n + 1;
    symbol.n -= package.n + 1;
    const char *dot = memchr(symbol.p, '.', symbol.n);
    symbol.n = dot ? (size_t)(dot - symbol.p) : symbol.n;
    while (next_field(&file, &field, &part)) {
        if ((field == FILE_MESSAGE || field == FILE_ENUM || field == FILE_SERVICE) &&
            find_field(part, 1, &name) && equal(name, symbol)) {
            return true;
        }
    }
    return false;
}

/* ---- answers ---- */

static void put_varint(nrd_str *s, uint64_t v)
{
    while (v >= 0x80) {
        nrd_str_putc(s, (char)(v | 0x80));
        v >>= 7;
    }
    nrd_str_putc(s, (char)v);
}

static void put(nrd_str *s, unsigned field, const char *data, size_t n)
{
    put_varint(s, field << 3 | 2);
    put_varint(s, n);
    nrd_str_append(s, data, n);
}

static void put_part(nrd_str *s, unsigned field, const nrd_str *part)
{
    put(s, field, nrd_str_cstr(part), part->len);
    if (part->no_memory) {
        nrd_str_spoil(s);
    }
}

enum { ASK_FILE = 3, ASK_SYMBOL = 4, ASK_EXTENSION = 5, ASK_EXTENSIONS = 6, ASK_SERVICES = 7 };
enum { TELL_HOST = 1, TELL_REQUEST = 2, TELL_FILES = 4, TELL_SERVICES = 6, TELL_ERROR = 7 };

static void put_services(nrd_str *out)
{
    span set = all_files(), file, part, package, name;
    nrd_str list = {0}, entry = {0}, full = {0};
    unsigned field;
    while (next_file(&set, &file)) {
        span rest = file;
        find_field(file, FILE_PACKAGE, &package);
        while (next_field(&rest, &field, &part)) {
            if (field == FILE_SERVICE && find_field(part, 1, &name)) {
                nrd_str_clear(&full);
                nrd_str_clear(&entry);
                nrd_str_append(&full, package.p, package.n);
                nrd_str_putc(&full, '.');
                nrd_str_append(&full, name.p, name.n);
                put_part(&entry, 1, &full);
                put_part(&list, 1, &entry);
            }
        }
    }
    put_part(out, TELL_SERVICES, &list);
    nrd_str_fini(&list);
    nrd_str_fini(&entry);
    nrd_str_fini(&full);
}

static void put_error(nrd_str *out, int code, const char *text)
{
    nrd_str e = {0};
    put_varint(&e, 1 << 3);
    put_varint(&e, (uint64_t)code);
    put(&e, 2, text, strlen(text));
    put_part(out, TELL_ERROR, &e);
    nrd_str_fini(&e);
}

/* The file of that name, or the one that declares that symbol. */
static void put_file(nrd_str *out, span what, bool by_name)
{
    span set = all_files(), file, name;
    while (next_file(&set, &file)) {
        find_field(file, FILE_NAME, &name);
        if (by_name ? equal(name, what) : declares(file, what)) {
            nrd_str list = {0};
            put(&list, 1, file.p, file.n);
            put_part(out, TELL_FILES, &list);
            nrd_str_fini(&list);
            return;
        }
    }
    put_error(out, GRPC_STATUS_NOT_FOUND, by_name ? "File not found." : "Symbol not found.");
}

static void answer(span question, nrd_str *out)
{
    span in = question, value, host;
    unsigned field, asked = 0;
    span what = {"", 0};
    while (next_field(&in, &field, &value)) {
        if (field >= ASK_FILE && field <= ASK_SERVICES) {
            asked = field;
            what = value;
        }
    }
    find_field(question, 1, &host);
    put(out, TELL_HOST, host.p, host.n);
    put(out, TELL_REQUEST, question.p, question.n);
    switch (asked) {
    case ASK_FILE:
        put_file(out, what, true);
        break;
    case ASK_SYMBOL:
        put_file(out, what, false);
        break;
    case ASK_SERVICES:
        put_services(out);
        break;
    case ASK_EXTENSION:
    case ASK_EXTENSIONS:
        put_error(out, GRPC_STATUS_NOT_FOUND, "There are no extensions.");
        break;
    default:
        put_error(out, GRPC_STATUS_INVALID_ARGUMENT, "no question was asked");
        break;
    }
}

/* ---- the call ---- */

typedef struct talk {
    nrd_grpc_call *call;
    nrd_grpc_tag on_read, on_written;
    grpc_byte_buffer *incoming, *outgoing;
    bool begun, ending;
} talk;

/* Takes err. */
static void end_talk(talk *t, nrd_error *err)
{
    grpc_op ops[2];
    size_t n = 0;
    t->ending = true;
    if (!t->begun) {
        nrd_grpc_metadata_op(t->call, &ops[n++]);
    }
    nrd_grpc_status_op(t->call, err, &ops[n++]);
    nrd_grpc_start(t->call, ops, n, &t->on_written);
}

static void start_read(talk *t)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    t->incoming = NULL;
    op.data.recv_message.recv_message = &t->incoming;
    nrd_grpc_start(t->call, &op, 1, &t->on_read);
}

static void start_write(talk *t, const nrd_str *text)
{
    grpc_op ops[2];
    size_t n = 0;
    grpc_slice slice = grpc_slice_from_copied_buffer(text->data, text->len);
    t->outgoing = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    if (!t->begun) {
        t->begun = true;
        nrd_grpc_metadata_op(t->call, &ops[n++]);
    }
    memset(&ops[n], 0, sizeof ops[n]);
    ops[n].op = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = t->outgoing;
    nrd_grpc_start(t->call, ops, n, &t->on_written);
}

static void run_read(nrd_grpc_tag *tag, bool ok)
{
    talk *t = NRD_GRPC_OF(tag, talk, on_read);
    nrd_grpc_call *call = t->call;
    grpc_slice whole = grpc_empty_slice();
    nrd_error *err = ok && t->incoming ? nrd_grpc_bytes(call->service, &call->claim, t->incoming, &whole) : NULL;

    if (ok && t->incoming && !err) {
        nrd_str out = {0};
        answer((span){(const char *)GRPC_SLICE_START_PTR(whole), GRPC_SLICE_LENGTH(whole)}, &out);
        err = nrd_str_error(&out);
        if (!err) {
            start_write(t, &out);
        }
        nrd_str_fini(&out);
    }
    if (err || !ok || !t->incoming) {
        end_talk(t, err); /* a message that cannot be read ends the talk, too */
    }
    grpc_slice_unref(whole);
    if (t->incoming) {
        grpc_byte_buffer_destroy(t->incoming);
        t->incoming = NULL;
    }
    nrd_grpc_call_unref(call);
}

static void run_written(nrd_grpc_tag *tag, bool ok)
{
    talk *t = NRD_GRPC_OF(tag, talk, on_written);
    nrd_grpc_call *call = t->call;
    if (t->outgoing) {
        grpc_byte_buffer_destroy(t->outgoing);
        t->outgoing = NULL;
    }
    if (!t->ending) {
        ok ? start_read(t) : end_talk(t, NULL);
    }
    nrd_grpc_call_unref(call);
}

static void talk_free(nrd_grpc_call *call)
{
    free(call->state);
}

void nrd_grpc_reflection(nrd_grpc_call *call)
{
    talk *t = calloc(1, sizeof *t);
    if (!t) {
        nrd_grpc_fail(call, nrd_error_no_memory());
        return;
    }
    t->call = call;
    t->on_read.run = run_read;
    t->on_written.run = run_written;
    call->state = t;
    call->free_state = talk_free;
    atomic_fetch_sub(&call->service->busy, 1); /* keeps no stop waiting */
    start_read(t);
}
