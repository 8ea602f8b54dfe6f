/* SPDX-License-Identifier: Apache-2.0
 * text/films.h - where the frames of videos stand in a chat.
 *
 * Purpose   A template puts one place for a video. Models that look at groups of frames by their time (Qwen3-VL, Qwen3.5) have one for each
 *           group, behind its time as text.
 * Owner     No state; any thread.
 * Sources   Qwen3-VL's report (Bai et al., 2025), as transformers' Qwen3VLProcessor writes the times.
 */
#ifndef NRD_TEXT_FILMS_H
#define NRD_TEXT_FILMS_H

#include "base/error.h"
#include "base/str.h"

typedef struct nrd_film {
    int64_t n_frames;
    double fps; /* of these frames */
} nrd_film;

/* In a rendered chat with n films: places of groups of in_group frames for the first n places of videos, as far as there are so many. */
NRD_API nrd_error *nrd_films_put_times(nrd_str *chat, const nrd_film *films, size_t n, int64_t in_group) NRD_MUST_USE;

#endif
