#!/bin/bash
# Runs a test again with other environment variables, which bazel/simd.bzl sets.
exec "$@"
