# SPDX-License-Identifier: Apache-2.0
"""What the templates of deploy/helm use of Helm's language, so that they can be looked at where there is no helm: values,
if/else, five functions, and define/include of `.`. Anything else is an error, so the chart stays that simple. It is not Helm: `helm lint` and
`helm template` are the judges where they can be had."""
import copy
import re

import yaml

ACTION = re.compile(r"\{\{(-?)(.*?)(-?)\}\}", re.S)


def merged(base, over):
    """Values as -f gives them: maps are joined, the rest is replaced."""
    out = copy.deepcopy(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def look_up(path, data):
    for part in path[1:].split("."):
        if not isinstance(data, dict) or part not in data:
            raise KeyError(path)
        data = data[part]
    return data


def definitions(template):
    """{name: body} of a file of them."""
    found, name, depth = {}, None, 0
    for m in ACTION.finditer(template):
        words = m[2].split()
        if words[0] == "define":
            name, start, depth = words[1].strip('"'), m.end(), 1
        elif words[0] == "if":
            depth += 1
        elif words == ["end"]:
            depth -= 1
            if depth == 0:
                body = template[start:m.start()]
                found[name] = body.rstrip() if m[1] else body
    return found


def value(words, data, defines):
    """One call or value."""
    if words[0] == "include":
        if words[2:] != ["."]:
            raise ValueError(words)
        return render(defines[words[1].strip('"')], data, defines)
    name, arguments = words[0], [look_up(w, data) if w.startswith(".") else int(w) for w in words[1:]]
    if name.startswith("."):
        if arguments:
            raise ValueError(words)
        return look_up(name, data)
    return {"not": lambda a: not a, "add": lambda a, b: a + b, "div": lambda a, b: a // b,
            "toYaml": lambda a: yaml.safe_dump(a, default_flow_style=False).rstrip("\n")}[name](*arguments)


def text(action, data, defines):
    first, *pipes = (part.split() for part in action.split("|"))
    out = value(first, data, defines)
    for pipe in pipes:
        if pipe == ["quote"]:
            out = '"' + str(out).replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif pipe[0] == "indent":
            out = "\n".join(" " * int(pipe[1]) + line for line in out.split("\n"))
        else:
            raise ValueError(f"unknown function {pipe}")
    return str(out)


def render(template, data, defines):
    out, at, stack = [], 0, []  # stack: [shown before, condition]
    shown = True
    for m in ACTION.finditer(template):
        piece = template[at:m.start()]
        at = m.end()
        out.append((piece.rstrip() if m[1] else piece) if shown else "")
        words = m[2].split()
        if words[0] == "if":
            stack.append((shown, bool(value(words[1:], data, defines))))
            shown = shown and stack[-1][1]
        elif words == ["else"]:
            shown = stack[-1][0] and not stack[-1][1]
        elif words == ["end"]:
            shown = stack.pop()[0]
        elif shown:
            out.append(text(m[2].strip(), data, defines))
        if m[3]:
            raise ValueError("a minus at the end of an action is not used here")
    if stack:
        raise ValueError("an if has no end")
    return "".join(out) + template[at:]
