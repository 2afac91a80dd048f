#!/bin/bash
# A test that is another one in another environment (bazel/simd.bzl).
exec "$@"
