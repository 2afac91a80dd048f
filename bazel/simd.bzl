"""Instruction sets. simd_cc_library: one source compiled once for each, to be chosen at run time (kernels/cpu/simd_level.h).

Each source defines its functions inside `namespace muster::kernels::KERNELS_SIMD { ... }`. It may include only headers
whose functions are not templates or inline with external linkage (<cstdint>, <immintrin.h>, <cmath> for scalars): the
linker keeps one copy of an inline function, and it might be the one for the wrong processor.
"""

_LEVELS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
}

# Environment variables that make a test run as on an older processor: MUSTER_SIMD for Muster's loops, the other for oneDNN.
INSTRUCTION_SETS = {
    "sse42": {"MUSTER_SIMD": "baseline", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"MUSTER_SIMD": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}

def instruction_set_tests(tests, env = {}, tags = [], **attributes):
    """Adds X_sse42 and X_avx2 for each X of `tests`: the test with a smaller instruction set than this processor's best.

    They have the tag "slow", so the fast lane leaves them out (docs/testing.md)."""
    for test in tests:
        for level, environment in INSTRUCTION_SETS.items():
            native.sh_test(
                name = test + "_" + level,
                srcs = ["//bazel:exec.sh"],
                args = ["$(rootpath :%s)" % test],
                data = [":" + test],
                env = dict(env, **environment),
                tags = tags + ["slow"],
                **attributes
            )

def simd_cc_library(name, srcs, hdrs = [], deps = [], copts = [], **kwargs):
    for level, level_copts in _LEVELS.items():
        native.cc_library(
            name = name + "_" + level,
            srcs = srcs,
            hdrs = hdrs,
            copts = level_copts + ["-O3", "-DKERNELS_SIMD=" + level] + copts,
            deps = deps,
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name,
        hdrs = hdrs,
        deps = deps + [name + "_" + level for level in _LEVELS],
        **kwargs
    )
