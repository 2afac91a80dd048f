"""Finds the CUDA toolkit. Without one, @cuda is an empty repository and CUDA targets build as "no device"."""

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = ctx.os.environ.get("MUSTER_CUDA", "1") != "0" and ctx.path(home + "/bin/nvcc").exists
    if found:
        ctx.symlink(home, "toolkit")
    ctx.file("found.bzl", "CUDA_FOUND = %s\nNVCC = %r\n" % (found, home + "/bin/nvcc"))
    ctx.file("BUILD.bazel", ctx.read(ctx.attr._build_file).replace("{home}", home) if found else "")

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    attrs = {"_build_file": attr.label(default = "//bazel:cuda.BUILD")},
    environ = ["CUDA_HOME", "MUSTER_CUDA"],
    local = True,
)
