"""Bazel's C++ rules for a short build. Every file used to parse the headers of Abseil, Protocol Buffers, gRPC, GoogleTest and
Muster's own messages, which took most of its compilation. A target that depends on one of them now uses precompiled headers.

Sources must still include what they use: the clang lane compiles them without precompiled headers.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# The largest number of sources in one compilation, and in one program of tests. An edit compiles its whole group again.
# docs/testing.md has the measured times ("Build time").
_GROUP = 8
_TESTS_IN_PROGRAM = 4

# The precompiled headers (//bazel/precompiled), each with its marks. A target uses the first one with a mark among its
# dependencies. A header takes 6 to 15 s to make, so there are only three.
_PRECOMPILED = [
    ("test", ["@system//:gtest", "@system//:gtest_main"]),
    ("api", ["@system//:grpc", "//proto/muster/v1:muster"]),
    ("base", ["@system//:absl"]),
]

# Packages that no training step runs. They are compiled with -O1, which takes a fifth less time.
_CONTROL_PLANE = [
    "cli",
    "lib/checkpoint",
    "lib/fleet",
    "lib/graph",
    "lib/http",
    "lib/job",
    "lib/listener",
    "lib/plan",
    "lib/security",
    "proto",
    "services/coordinator",
]

def _copts():
    # This makes GCC collect garbage less often. It saves 8 % of the time and costs some hundreds of megabytes.
    copts = ["--param=ggc-min-heapsize=524288"]
    for folder in _CONTROL_PLANE:
        if (native.package_name() + "/").startswith(folder + "/"):
            copts = copts + ["-O1"]
    return select({
        "//bazel:precompiled_off": [],
        "//conditions:default": copts,
    })

def _precompiled_for(srcs, deps):
    if not srcs or type(deps) != "list":
        return None
    for name, marks in _PRECOMPILED:
        for dep in deps:
            if dep in marks or (name == "api" and dep.endswith("_grpc")):
                return name
    return None

def _source_group_impl(ctx):
    ctx.actions.run_shell(
        outputs = [ctx.outputs.out],
        inputs = ctx.files.srcs,
        arguments = [ctx.outputs.out.path] + [source.path for source in ctx.files.srcs],
        command = 'out=$1; shift; for f; do printf \'#line 1 "%s"\\n\' "$f"; cat "$f"; done >"$out"',
        mnemonic = "SourceGroup",
        progress_message = "Grouping sources of %s" % ctx.label,
    )

# Joins sources into one, in this order. Errors, log lines and debuggers still name the original file of a line.
_source_group = rule(
    implementation = _source_group_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "out": attr.output(mandatory = True),
    },
)

def _pieces(items, size):
    """Returns `items` in as few lists of at most `size` as possible, of nearly equal lengths."""
    count = (len(items) + size - 1) // size
    return [items[len(items) * i // count:len(items) * (i + 1) // count] for i in range(count)]

def _header_alone_impl(ctx):
    ctx.actions.write(ctx.outputs.out, '#include "%s"\n' % ctx.file.hdr.path)

_header_alone = rule(
    implementation = _header_alone_impl,
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"]),
        "out": attr.output(mandatory = True),
    },
)

def _headers_alone(srcs, hdrs):
    """Returns a source for each header X.h without an X.cc. It compiles only if the header includes all that it uses."""
    sources = []
    for hdr in hdrs:
        if hdr.endswith(".h") and not hdr.startswith((":", "//")) and hdr[:-len(".h")] + ".cc" not in srcs:
            out = hdr[:-len(".h")] + ".alone.cc"
            _header_alone(name = out + "_source", hdr = hdr, out = out, tags = ["manual"])
            sources.append(out)
    return sources

def _grouped(name, srcs, hdrs, group):
    """Returns the sources to compile instead of `srcs`: groups of up to `group`. With --config=single each source is compiled by
    itself, with --config=alone each header too."""
    sources = [src for src in srcs if src.endswith(".cc")]
    alone = srcs + _headers_alone(srcs, hdrs)
    if group < 2 or len(sources) < 2:
        return select({
            "//bazel:alone": alone,
            "//conditions:default": srcs,
        }) if len(alone) > len(srcs) else srcs
    others = [src for src in srcs if not src.endswith(".cc")]
    groups = []
    for piece in _pieces(sources, group):
        # .bazelrc selects the flags of generated code by the file name.
        out = "%s.group%d%s" % (name, len(groups), ".pb.cc" if piece[0].endswith(".pb.cc") else ".cc")
        _source_group(name = out + "_sources", srcs = piece, out = out, tags = ["manual"])
        groups.append(":" + out + "_sources")
    return select({
        "//bazel:single": srcs,
        "//bazel:alone": alone,
        "//conditions:default": others + groups,
    })

def _with_precompiled(rule, name, srcs, deps, copts, attributes, more_deps = [], hdrs = [], group = 1):
    header = _precompiled_for(srcs, deps)
    srcs = _grouped(name, srcs, hdrs, group)
    deps = deps + more_deps
    copts = _copts() + copts
    if header:
        deps = deps + select({
            "//bazel:precompiled_off": [],
            "//conditions:default": ["//bazel/precompiled:" + header],
        })
        copts = copts + select({
            "//bazel:precompiled_off": [],
            "//conditions:default": ["-Winvalid-pch", "-include", "$(BINDIR)/bazel/precompiled/%s.h" % header],
        })
    rule(name = name, srcs = srcs, deps = deps, copts = copts, **attributes)

def cc_library(name, srcs = [], hdrs = [], deps = [], copts = [], group = _GROUP, **attributes):
    """`group`: the most sources to compile as one; 1 if their speed in a training step matters, or if their names clash."""
    checked = [] if attributes.get("testonly") else hdrs
    _with_precompiled(native.cc_library, name, srcs, deps, copts, dict(attributes, hdrs = hdrs), hdrs = checked, group = group)

def cc_binary(name, srcs = [], deps = [], copts = [], **attributes):
    _with_precompiled(native.cc_binary, name, srcs, deps, copts, attributes)

def cc_test(name, srcs = [], deps = [], copts = [], **attributes):
    """Compiles the test's own sources with -Og, which takes 30 % less time than -O1. Half of the sources are tests, and each
    runs about once per compilation. -Og's warnings about uninitialized values are unreliable, so they are off. The libraries
    of a test are compiled as those of the programs. With ThreadSanitizer, //bazel:tsan_absl_mutex is linked in."""
    _with_precompiled(native.cc_test, name, srcs, deps, select({
        "//bazel:precompiled_off": ["-O1"],
        "//conditions:default": ["-Og", "-Wno-maybe-uninitialized"],
    }) + copts, attributes, select({
        "//bazel:tsan": ["//bazel:tsan_absl_mutex"],
        "//conditions:default": [],
    }), group = _GROUP)

def cc_tests(name, srcs, **attributes):
    """Builds the tests of a package as few programs: `name`_1, `name`_2, ... of a few sources each; `name` is all of them.

    `bazel test PACKAGE:X` runs the program that has X.cc. Each test file has its own namespace, named like the file. A test
    that replaces functions, needs files or runs long should be its own cc_test."""
    programs = []
    for piece in _pieces(srcs, _TESTS_IN_PROGRAM):
        program = "%s_%d" % (name, len(programs) + 1)
        cc_test(name = program, srcs = piece, **attributes)
        programs.append(":" + program)
        for src in piece:
            # A test_suite, because `bazel test` does not follow an alias to a test.
            native.test_suite(name = src.rsplit("/", 1)[-1][:-len(".cc")], tests = [":" + program], tags = ["manual"])
    native.test_suite(name = name, tests = programs, tags = ["manual"])

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # The compiler looks for X.h.gch where it finds X.h.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.symlink(output = header, target_file = ctx.file.hdr)
    parsed = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ours = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = parsed.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts,
        quote_include_directories = depset([".", ctx.bin_dir.path]),
        use_pic = True,
    )
    ctx.actions.run(
        executable = toolchain.compiler_executable,
        arguments = ["-x", "c++-header"] + cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = "c++-compile",
            variables = variables,
        ),
        inputs = depset([header, ctx.file.hdr] + ctx.files.included, transitive = [toolchain.all_files, ours.headers]),
        outputs = [parsed],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling " + ctx.file.hdr.short_path,
        use_default_shell_env = True,
    )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, parsed], transitive = [ours.headers]),
    ))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "hdr": attr.label(allow_single_file = [".h"], mandatory = True),
        "included": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
