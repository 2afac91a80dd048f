#!/bin/bash
# Writes compile_commands.json, which clangd and clang-tidy read, from what Bazel would run. Again after changes to BUILD
# files. Makes generated headers, compiles nothing. Arguments go to Bazel. CUDA's .cu files are not in it: clang 14 does not
# know CUDA 13.
set -euo pipefail
cd "$(dirname "$0")/.."

quiet=(--noshow_progress --ui_event_filters=-info)
mapfile -t generated < <(bazel query "${quiet[@]}" 'filter("\.h$", kind("generated file", //...:*))')
bazel build "${quiet[@]}" --config=single --keep_going "$@" "${generated[@]}" >&2
actions=$(mktemp)
trap 'rm -f "$actions"' EXIT
bazel aquery "${quiet[@]}" --config=single --output=jsonproto --noinclude_artifacts "$@" 'mnemonic("CppCompile", //...)' >"$actions"
python3 - "$actions" "$(bazel info --ui_event_filters=-info output_base)" <<'EOF'
import json, os, re, sys

actions, output_base = sys.argv[1:]
# What g++ knows and clang does not, what names outputs, and warnings as errors: clang has some of its own.
DROPPED = re.compile(r"-fno-canonical-system-headers|-Winvalid-pch|-Wno-free-nonheap-object|-Werror|-MD|-frandom-seed=.*")
WITH_VALUE = {"-MF", "-o"}
# Paths are as in Bazel's execution root, where folders of other repositories lie beside ours.
EXTERNAL = re.compile(r"^(-I|-iquote|-isystem)?external/")

commands = {}
for action in json.load(open(actions))["actions"]:
    arguments = iter(action["arguments"])
    kept, source = [], None
    for argument in arguments:
        if argument in WITH_VALUE:
            next(arguments)
        elif argument == "-include":  # headers that g++ has parsed already are no use to clang, and sources include theirs
            header = next(arguments)
            kept += [] if "/bazel/precompiled/" in header else [argument, header]
        elif argument == "-c":
            source = next(arguments)
            kept += ["-c", source]
        elif not DROPPED.fullmatch(argument):
            kept.append(EXTERNAL.sub(lambda m: (m[1] or "") + output_base + "/external/", argument))
    if source and source not in commands:  # a source of several instruction sets: the first will do
        commands[source] = {"directory": os.getcwd(), "file": source, "arguments": kept}
with open("compile_commands.json", "w") as file:
    json.dump([commands[source] for source in sorted(commands)], file, indent=1)
print(f"compile_commands.json: {len(commands)} files", file=sys.stderr)
EOF
