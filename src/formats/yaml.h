/* SPDX-License-Identifier: Apache-2.0
 * formats/yaml.h - YAML as programs write their settings, read into JSON by libyaml (NRD_HAVE_YAML).
 *
 * Purpose   One document of maps and lists. Types of plain values are those of YAML 1.1 as PyYAML reads them: true, yes and on are
 *           booleans, ~ and nothing are null; but only decimal numbers are numbers, with an exponent also where they have no dot.
 * Owner     A pure function, any thread.
 * Errors    INVALID_ARG with the line and what is wrong; UNSUPPORTED: anchors, aliases, tags, keys that are no text, several
 *           documents; or there is no libyaml.
 * Limits    See yaml.c: depth of maps and lists in each other.
 * Sources   YAML 1.1 (yaml.org/spec/1.1).
 */
#ifndef NRD_FORMATS_YAML_H
#define NRD_FORMATS_YAML_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>

/* Appends the text's value to `out`. Texts are escaped, but whether they are UTF-8 is for who parses the JSON. */
nrd_error *nrd_yaml_to_json(nrd_str *out, const char *text, size_t n) NRD_MUST_USE;

#endif
