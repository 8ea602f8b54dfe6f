/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/network.h - addresses of peers, and networks that an option names.
 *
 * Purpose   "10.0.0.0/8", "::1", "192.168.1.7" as text, and whether an address belongs to one.
 * Owner     Pure functions; a list belongs to whoever made it.
 * Units     IPv4 addresses are kept as IPv6 ones (::ffff:a.b.c.d), so that a peer is the same on both kinds of socket.
 * Sources   RFC 4291 sections 2.2, 2.3 and 2.5.5.2, RFC 4632.
 */
#ifndef NRD_FRONTENDS_COMMON_NETWORK_H
#define NRD_FRONTENDS_COMMON_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NRD_ADDRESS_TEXT 46 /* the longest one and the end */

typedef struct nrd_address {
    uint8_t bytes[16]; /* all 0: unknown */
} nrd_address;

typedef struct nrd_networks {
    struct nrd_network {
        nrd_address first;
        int n_bits; /* that all of its addresses share, 0 to 128 */
    } *v;           /* [n]; owns */
    size_t n;
} nrd_networks;

struct sockaddr;
/* An address of another family is unknown. */
nrd_address nrd_address_of(const struct sockaddr *a);
/* text[0..n): an address alone. false: it is none. */
bool nrd_address_parse(const char *text, size_t n, nrd_address *out);
void nrd_address_put(const nrd_address *a, char out[NRD_ADDRESS_TEXT]); /* "-": unknown */

/* Adds an address or ADDRESS/BITS. false: it is neither, bits behind the prefix are set, or there is no memory. */
bool nrd_networks_add(nrd_networks *list, const char *text);
bool nrd_networks_have(const nrd_networks *list, const nrd_address *a); /* an unknown one: false */
void nrd_networks_fini(nrd_networks *list);

#endif
