"""Finds the CUDA toolkit. Without one, @cuda is an empty repository and CUDA targets build as "no device"."""

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    wanted = ctx.os.environ.get("MUSTER_CUDA", "auto")  # "1": insist, "0": do without
    found = wanted != "0" and ctx.path(home + "/bin/nvcc").exists
    if wanted == "1" and not found:
        fail("no CUDA toolkit: %s/bin/nvcc does not exist; set CUDA_HOME" % home)
    if found:
        ctx.symlink(home, "toolkit")
    cupti = found and ctx.path(home + "/include/cupti.h").exists  # in a separate package; only profiles need it
    ctx.file("found.bzl", "CUDA_FOUND = %s\nCUPTI_FOUND = %s\nNVCC = %r\nLIBRARIES = %r\n" %
                          (found, cupti, home + "/bin/nvcc", home + "/lib64"))
    ctx.file("BUILD.bazel", ctx.read(ctx.attr._build_file).replace("{home}", home) if found else "")

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    attrs = {"_build_file": attr.label(default = "//bazel:cuda.BUILD")},
    environ = ["CUDA_HOME", "MUSTER_CUDA"],
    local = True,
)
