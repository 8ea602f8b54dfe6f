# SPDX-License-Identifier: Apache-2.0
"""Pictures and videos of prompts, as bytes that the engine reads."""
from __future__ import annotations

import base64
import io
import os
from typing import Any, Dict, List, Sequence, Tuple

USUAL_FPS = 2.0
Video = Tuple[float, List[bytes]]


def picture(value: Any) -> bytes:
    """Of bytes of a file, a path, a data: URL or what has save() as Pillow's pictures have."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str) and value.startswith("data:"):
        return base64.b64decode(value.partition(";base64,")[2])
    if isinstance(value, (str, os.PathLike)):
        with open(value, "rb") as f:
            return f.read()
    if hasattr(value, "save"):
        out = io.BytesIO()
        (value if getattr(value, "mode", "RGB") == "RGB" else value.convert("RGB")).save(out, format="PPM")
        return out.getvalue()
    raise TypeError(f"a picture must be bytes, a path, a data: URL or have save(), got {type(value).__name__}")


def video(value: Any, fps: Any = None) -> Video:
    """Of a list of pictures, or of {"frames": pictures, "fps": frames a second}."""
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"frames", "fps"})
        if unknown or "frames" not in value:
            raise TypeError(f"a video has frames and fps{', not ' + unknown[0] if unknown else ''}")
        value, fps = value["frames"], value.get("fps", fps)
    if isinstance(value, str) and value.startswith("data:video/jpeg"):
        value = ["data:image/jpeg;base64," + frame for frame in value.partition(";base64,")[2].split(",")]
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError("a video must be a list of its frames; a film is not decoded")
    return float(USUAL_FPS if fps is None else fps), [picture(frame) for frame in value]


def _as_list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def of_prompt(data: Dict[str, Any]) -> Tuple[List[bytes], List[Video]]:
    """multi_modal_data: {"image": one or several, "video": one or several}. One video is a dictionary or a list of pictures."""
    unknown = sorted(set(data) - {"image", "video"})
    if unknown:
        raise TypeError(f"multi_modal_data: '{unknown[0]}' is not known; image and video are")
    videos = data.get("video")
    several = isinstance(videos, (list, tuple)) and len(videos) > 0 and isinstance(videos[0], (dict, list, tuple))
    return ([picture(p) for p in _as_list(data.get("image"))],
            [video(v) for v in (videos if several else [videos] if videos else [])])


def of_messages(messages: Sequence[Dict[str, Any]]) -> Tuple[List[Dict[str, Any]], List[bytes], List[Video]]:
    """Messages as a template reads them, and what their parts bring."""
    out: List[Dict[str, Any]] = []
    pictures: List[bytes] = []
    videos: List[Video] = []
    for message in messages:
        content = message.get("content")
        if not isinstance(content, (list, tuple)):
            out.append(message)
            continue
        parts = []
        for part in content:
            kind = part.get("type")
            if kind in ("image", "image_url"):
                value = part.get(kind)
                pictures.append(picture(value.get("url") if isinstance(value, dict) else value))
                parts.append({"type": "image"})
            elif kind in ("video", "video_url"):
                value = part.get(kind)
                url = value.get("url") if isinstance(value, dict) and "url" in value else value
                videos.append(video(url, part.get("fps")))
                parts.append({"type": "video"})
            else:
                parts.append(part)
        out.append({**message, "content": parts})
    return out, pictures, videos
