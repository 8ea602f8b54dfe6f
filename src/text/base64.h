/* text/base64.h - RFC 4648 base64 with padding, for charsmaps inside JSON. Stateless, any thread. */
#ifndef NRD_TEXT_BASE64_H
#define NRD_TEXT_BASE64_H

#include "base/str.h"

bool nrd_text_base64_decode(const char *s, size_t n, nrd_str *out); /* false: no valid base64 */
void nrd_base64_encode(const char *s, size_t n, nrd_str *out);

#endif
