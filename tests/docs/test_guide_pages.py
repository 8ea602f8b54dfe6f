# SPDX-License-Identifier: Apache-2.0
"""Guides say what to do in 300 to 600 words, which a reader takes in a few minutes; details stand on pages of their own. Every link of
a page leads to something."""
import re
import urllib.parse

import pages
import pytest

GUIDES = ("install", "choose", "serve", "chat", "connect", "tune", "monitor", "secure", "upgrade", "troubleshooting", "migrate")
README = (pages.ROOT / "README.md").read_text(encoding="utf-8")


def without_blocks(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def prose(text):
    """The words of a page but for blocks, tables and targets of links."""
    lines = [line for line in without_blocks(text).split("\n") if not line.startswith("|")]
    return [w for w in re.sub(r"\]\([^)]*\)", "]", "\n".join(lines)).split() if re.search(r"\w", w)]


def anchors(text):
    """The names of a page's headings, as GitHub makes them."""
    out = set()
    for title in re.findall(r"^#+ (.*)$", without_blocks(text), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "]", title).lower()).strip().replace(" ", "-")
        out.add(next(n for n in [name, *(f"{name}-{i}" for i in range(1, 99))] if n not in out))
    return out


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_as_long_as_a_short_walk(guide):
    text = (pages.ROOT / f"docs/{guide}.md").read_text(encoding="utf-8")
    assert 300 <= len(prose(text)) <= 600, f"docs/{guide}.md has {len(prose(text))} words"
    assert f"(docs/{guide}.md)" in README


def test_words_are_counted_without_tables_and_blocks():
    assert len(prose("# A title\n\nOne two – [three](four.md).\n\n| five | six |\n\n```sh\nseven eight\n```\n")) == 5


@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_somewhere(page):
    at = pages.ROOT / page
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(at.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        there = (at.parent / path).resolve() if path else at
        if not there.exists():
            wrong.append(target)
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text(encoding="utf-8")):
            wrong.append(target)
    assert not wrong
