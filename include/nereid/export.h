/* SPDX-License-Identifier: Apache-2.0
 * nereid/export.h - what libnereid.so shows to programs that link it; all else is hidden. */
#ifndef NEREID_EXPORT_H
#define NEREID_EXPORT_H

#define NRD_API __attribute__((visibility("default")))

#endif
