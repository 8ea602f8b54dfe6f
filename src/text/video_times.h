/* SPDX-License-Identifier: Apache-2.0
 * text/video_times.h - where the frames of videos stand in a chat.
 *
 * Purpose   A template puts one place for a video. Models that look at groups of frames by their time (Qwen3-VL, Qwen3.5) have one for each
 *           group, behind its time as text.
 * Owner     No state; any thread.
 * Sources   Qwen3-VL's report (Bai et al., 2025), as transformers' Qwen3VLProcessor writes the times.
 */
#ifndef NRD_TEXT_VIDEO_TIMES_H
#define NRD_TEXT_VIDEO_TIMES_H

#include "base/error.h"
#include "base/str.h"

typedef struct nrd_video_time {
    int64_t n_frames;
    double fps; /* of these frames */
} nrd_video_time;

/* In a rendered chat with n videos: places of groups of in_group frames for the first n places of videos, as far as there are so many. */
NRD_API nrd_error *nrd_video_put_times(nrd_str *chat, const nrd_video_time *times, size_t n, int64_t in_group) NRD_MUST_USE;

#endif
