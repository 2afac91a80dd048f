#!/bin/bash
# Writes compile_commands.json, which clangd and clang-tidy read, from the commands that Bazel would run. Run it again after
# changes to BUILD files. It makes generated headers and compiles nothing. Arguments go to Bazel. CUDA's .cu files are left
# out, because clang 14 does not know CUDA 13.
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
# Flags that clang does not know, flags that name outputs, and -Werror, because clang has warnings that g++ lacks.
DROPPED = re.compile(r"-fno-canonical-system-headers|-Winvalid-pch|-Wno-free-nonheap-object|-Werror|-MD|-frandom-seed=.*")
WITH_VALUE = {"-MF", "-o"}
# Paths are those of Bazel's execution root, which has the other repositories in the folder `external`.
EXTERNAL = re.compile(r"^(-I|-iquote|-isystem)?external/")

commands = {}
for action in json.load(open(actions))["actions"]:
    arguments = iter(action["arguments"])
    kept, source = [], None
    for argument in arguments:
        if argument in WITH_VALUE:
            next(arguments)
        elif argument == "-include":  # clang cannot read g++'s precompiled headers; sources include what they need
            header = next(arguments)
            kept += [] if "/bazel/precompiled/" in header else [argument, header]
        elif argument == "-c":
            source = next(arguments)
            kept += ["-c", source]
        elif not DROPPED.fullmatch(argument):
            kept.append(EXTERNAL.sub(lambda m: (m[1] or "") + output_base + "/external/", argument))
    if source and source not in commands:  # a source is compiled for several instruction sets; the first is enough
        commands[source] = {"directory": os.getcwd(), "file": source, "arguments": kept}
with open("compile_commands.json", "w") as file:
    json.dump([commands[source] for source in sorted(commands)], file, indent=1)
print(f"compile_commands.json: {len(commands)} files", file=sys.stderr)
EOF
