/* frontends/base64.h - bytes inside JSON.
 *
 * Purpose   Decodes the standard alphabet (RFC 4648 section 4).
 * Owner     Stateless.
 */
#ifndef NRD_FRONTENDS_BASE64_H
#define NRD_FRONTENDS_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* Line breaks are skipped, '=' ends. out has room for n bytes. false: another character. */
bool nrd_base64_decode(const char *in, size_t n, char *out, size_t *out_n);

#endif
