/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/inflate.h"

#include "base/mem.h"

#include <zlib.h>

#define GZIP_WINDOW (15 + 16) /* zlib: 16 more means a gzip frame */
#define ZLIB_WINDOW 15

static nrd_error *too_long(size_t max, const char *option)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "decompressed request body exceeds the maximum allowed input size of %zu "
                      "bytes. Use --%s to increase the limit.",
                      max, option);
}

nrd_error *nrd_inflate(char **out, size_t *out_n, nrd_claim *claim, bool is_gzip, const char *data, size_t n,
                       size_t max, const char *option)
{
    z_stream z = {0};
    size_t cap = 0, len = 0;
    char *buf = NULL;
    nrd_error *err = NULL;
    int rc = Z_OK;

    *out = NULL;
    *out_n = 0;
    if (inflateInit2(&z, is_gzip ? GZIP_WINDOW : ZLIB_WINDOW) != Z_OK) {
        return nrd_error_no_memory();
    }
    while (rc != Z_STREAM_END && !err) {
        if (len == cap) {
            /* One byte over the limit shows that there is more than the limit. */
            size_t next = cap ? cap * 2 : (n < 4096 ? 16384 : n * 4);
            next = next > max + 1 ? max + 1 : next;
            err = len > max ? NULL : nrd_claim_bytes(claim, next - cap, "its body, decompressed");
            if (err) {
                break;
            }
            char *bigger = len > max ? NULL : realloc(buf, next);
            if (!bigger) {
                err = len > max ? too_long(max, option) : nrd_error_no_memory();
                break;
            }
            buf = bigger;
            cap = next;
        }
        size_t in_now = n > UINT32_MAX ? UINT32_MAX : n;
        size_t out_now = cap - len > UINT32_MAX ? UINT32_MAX : cap - len;
        z.next_in = (Bytef *)(uintptr_t)data;
        z.avail_in = (uInt)in_now;
        z.next_out = (Bytef *)buf + len;
        z.avail_out = (uInt)out_now;
        rc = inflate(&z, Z_NO_FLUSH);
        size_t used = in_now - z.avail_in, made = out_now - z.avail_out;
        data += used;
        n -= used;
        len += made;
        if (rc != Z_OK && rc != Z_STREAM_END && !(rc == Z_BUF_ERROR && len == cap)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "failed to decompress data: %s",
                             z.msg ? z.msg : "incomplete or damaged");
        } else if (rc == Z_OK && used == 0 && made == 0) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "failed to decompress data: incomplete");
        }
    }
    inflateEnd(&z);
    if (!err && n > 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "failed to decompress data: bytes behind its end");
    }
    if (!err && len > max) {
        err = too_long(max, option);
    }
    if (err) {
        free(buf);
        return err;
    }
    *out = buf;
    *out_n = len;
    return NULL;
}
