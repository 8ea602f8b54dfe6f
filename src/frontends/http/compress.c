/* SPDX-License-Identifier: Apache-2.0
 * gzip and deflate with zlib: which coding a header names or prefers, bodies unpacked up to a
 * limit, answers packed. Called for requests and replies of the HTTP service; long bodies on a
 * worker. */
#include "frontends/http/compress.h"

#include "base/mem.h"

#include <string.h>
#include <zlib.h>

#define GZIP_WINDOW (15 + 16) /* zlib: 16 more means a gzip frame */
#define ZLIB_WINDOW 15

const char *nrd_http_encoding_name(nrd_http_encoding e)
{
    return e == NRD_ENCODING_GZIP ? "gzip" : e == NRD_ENCODING_DEFLATE ? "deflate" : "identity";
}

nrd_http_encoding nrd_http_content_encoding(const nrd_view *v)
{
    if (!v || v->n == 0 || nrd_view_is_nocase(*v, "identity")) {
        return NRD_ENCODING_IDENTITY;
    }
    if (nrd_view_is_nocase(*v, "gzip")) {
        return NRD_ENCODING_GZIP;
    }
    return nrd_view_is_nocase(*v, "deflate") ? NRD_ENCODING_DEFLATE : NRD_ENCODING_UNKNOWN;
}

/* One "name;q=0.5". The weight is 1 when absent, -1 when it cannot be read. */
static double split_weight(nrd_view item, nrd_view *out_name)
{
    const char *semi = memchr(item.p, ';', item.n);
    double weight = 1;
    size_t n = semi ? (size_t)(semi - item.p) : item.n;
    while (n && (item.p[n - 1] == ' ' || item.p[n - 1] == '\t')) {
        n--;
    }
    *out_name = (nrd_view){item.p, n};
    if (semi) {
        const char *p = semi + 1, *end = item.p + item.n;
        char text[16];
        while (p < end && (*p == ' ' || *p == '\t')) {
            p++;
        }
        if (end - p < 3 || (p[0] != 'q' && p[0] != 'Q') || p[1] != '=' ||
            (size_t)(end - p - 2) >= sizeof text) {
            return -1;
        }
        memcpy(text, p + 2, (size_t)(end - p - 2));
        text[end - p - 2] = '\0';
        if (!nrd_parse_f64(text, &weight)) {
            return -1;
        }
    }
    return weight;
}

nrd_http_encoding nrd_http_accept_encoding(const nrd_view *v)
{
    nrd_http_encoding best = NRD_ENCODING_IDENTITY;
    double best_weight = 0;
    for (size_t i = 0; v && i < v->n;) {
        const char *comma = memchr(v->p + i, ',', v->n - i);
        size_t end = comma ? (size_t)(comma - v->p) : v->n;
        while (i < end && (v->p[i] == ' ' || v->p[i] == '\t')) {
            i++;
        }
        nrd_view name;
        double weight = split_weight((nrd_view){v->p + i, end - i}, &name);
        nrd_http_encoding e = nrd_http_content_encoding(&name);
        if (name.n && e != NRD_ENCODING_UNKNOWN && weight > best_weight) {
            best = e;
            best_weight = weight;
        }
        i = end + 1;
    }
    return best;
}

nrd_error *nrd_http_deflate(nrd_str *out, nrd_http_encoding e, const struct iovec *parts,
                            int n_parts)
{
    z_stream z = {0};
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                     e == NRD_ENCODING_GZIP ? GZIP_WINDOW : ZLIB_WINDOW, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
        return nrd_error_no_memory();
    }
    for (int i = 0; i <= n_parts; i++) {
        const bool finish = i == n_parts;
        const char *p = finish ? "" : parts[i].iov_base;
        size_t left = finish ? 0 : parts[i].iov_len;
        int rc;
        do {
            size_t now = left > UINT32_MAX ? UINT32_MAX : left;
            if (!nrd_str_reserve(out, 16384)) {
                deflateEnd(&z);
                return nrd_error_no_memory();
            }
            z.next_in = (Bytef *)(uintptr_t)p;
            z.avail_in = (uInt)now;
            z.next_out = (Bytef *)out->data + out->len;
            z.avail_out = 16384;
            rc = deflate(&z, finish ? Z_FINISH : Z_NO_FLUSH);
            p += now - z.avail_in;
            left -= now - z.avail_in;
            out->len += 16384 - z.avail_out;
        } while (left > 0 || z.avail_out == 0 || (finish && rc != Z_STREAM_END));
    }
    deflateEnd(&z);
    return NULL;
}
