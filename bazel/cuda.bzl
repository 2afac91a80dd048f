"""cuda_library: like cc_library, with .cu sources compiled by nvcc. Only where CUDA_FOUND (@cuda//:found.bzl)."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:found.bzl", "NVCC")

# Machine code for Ampere and Hopper, and PTX, which the driver compiles for newer devices.
_ARCHITECTURES = ["arch=compute_80,code=sm_80", "arch=compute_90,code=[sm_90,compute_90]"]
_FLAGS = ["-c", "-O3", "-std=c++20", "-lineinfo", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC,-Wall,-Wextra", "-I."]

def _cuda_objects_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])

    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file(ctx.label.name + "/" + source.basename + ".o")
        arguments = ctx.actions.args()
        arguments.add_all(_FLAGS)
        arguments.add_all(_ARCHITECTURES, format_each = "-gencode=%s")
        arguments.add_all([source, "-o", object])
        ctx.actions.run(
            executable = NVCC,
            arguments = [arguments],
            inputs = depset([source] + ctx.files.hdrs + ctx.files.device_hdrs, transitive = [deps.compilation_context.headers]),
            outputs = [object],
            mnemonic = "CudaCompile",
            use_default_shell_env = True,
        )
        objects.append(object)

    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [deps.linking_context],
        disallow_dynamic_library = True,
    )
    return [DefaultInfo(files = depset(objects)), CcInfo(linking_context = linking_context)]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "device_hdrs": attr.label_list(allow_files = [".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs, device_hdrs = [], deps = [], **kwargs):
    """The headers go through a native cc_library, so that layering_check sees them; device_hdrs are for the sources alone."""
    _cuda_objects(name = name + "_objects", srcs = srcs, hdrs = hdrs, device_hdrs = device_hdrs, deps = deps)
    native.cc_library(name = name, hdrs = hdrs, deps = deps + [":" + name + "_objects", "@cuda//:cudart"], **kwargs)
